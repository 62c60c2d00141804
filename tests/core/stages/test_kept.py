"""Heavy things with a lifetime: opened at first use, kept or released, never leaked."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vflash.stages.kept import Kept


class Heavy:
    """Stands for a model."""


class Shelf:
    """Opens `Heavy` things and remembers them without holding them."""

    def __init__(self, fail_at: int = -1) -> None:
        self.opened: list[weakref.ref[Heavy]] = []
        self.released = 0
        self._fail_at = fail_at

    @contextmanager
    def open(self) -> Iterator[Heavy]:
        heavy = Heavy()
        if len(self.opened) == self._fail_at:
            self._fail_at = -1
            raise RuntimeError("cannot be opened")
        self.opened.append(weakref.ref(heavy))
        try:
            yield heavy
        finally:
            self.released += 1

    @property
    def alive(self) -> int:
        return sum(ref() is not None for ref in self.opened)


def use(kept: Kept[Heavy]) -> None:
    with kept.use() as heavy:
        assert isinstance(heavy, Heavy)


def test_nothing_is_opened_before_its_first_use():
    """A kept thing costs nothing until it is needed."""
    shelf = Shelf()
    kept = Kept(shelf.open, keep=True)
    assert shelf.opened == []
    assert kept.open_seconds == 0.0
    use(kept)
    assert len(shelf.opened) == 1
    assert kept.open_seconds > 0.0


def test_what_is_kept_is_opened_once_until_closed():
    """The same object serves every use; closing releases it, and the memory really goes."""
    shelf = Shelf()
    kept = Kept(shelf.open, keep=True)
    with kept.use() as first:
        pass
    with kept.use() as second:
        assert second is first
    del first, second
    assert (len(shelf.opened), shelf.released, shelf.alive) == (1, 0, 1)
    kept.close()
    assert (shelf.released, shelf.alive) == (1, 0)
    kept.close()
    assert shelf.released == 1
    use(kept)
    assert len(shelf.opened) == 2


def test_what_is_not_kept_goes_after_each_use():
    """Each use opens anew and nothing is alive between uses."""
    shelf = Shelf()
    kept = Kept(shelf.open, keep=False)
    for count in (1, 2):
        use(kept)
        assert (len(shelf.opened), shelf.released, shelf.alive) == (count, count, 0)


def test_opening_early_is_the_use_s_own_opening():
    """`open` before `use` pays once, also for what is not kept."""
    shelf = Shelf()
    kept = Kept(shelf.open, keep=False)
    kept.open()
    spent = kept.open_seconds
    use(kept)
    assert (len(shelf.opened), shelf.alive, kept.open_seconds) == (1, 0, spent)


@pytest.mark.parametrize("keep", [True, False])
def test_a_failed_use_releases_only_what_is_not_kept(keep):
    """An error inside a use passes through; a kept model survives it."""
    shelf = Shelf()
    kept = Kept(shelf.open, keep=keep)
    with pytest.raises(RuntimeError, match="inside"), kept.use():
        raise RuntimeError("inside")
    assert shelf.released == (0 if keep else 1)


def test_a_failed_opening_leaves_nothing_and_can_be_tried_again():
    """The opener's own error arrives; the next use opens anew."""
    shelf = Shelf(fail_at=0)
    kept = Kept(shelf.open, keep=True)
    with pytest.raises(RuntimeError, match="cannot be opened"):
        use(kept)
    assert (shelf.opened, kept.open_seconds) == ([], 0.0)
    use(kept)
    assert len(shelf.opened) == 1


def test_what_fails_to_close_stays_owned():
    """A device that does not come to rest may still read it: it is not freed behind the error, nor by closing again."""
    shelf = Shelf()

    @contextmanager
    def restless() -> Iterator[Heavy]:
        with shelf.open() as heavy:
            yield heavy
        raise RuntimeError("no rest")

    kept = Kept(restless, keep=True)
    use(kept)
    with pytest.raises(RuntimeError, match="no rest"):
        kept.close()
    gc.collect()
    assert not kept.is_open
    kept.close()
    assert shelf.alive == 1
