"""Keep: finished latents are on a disk before anything that may fail, in a second place if the first one fails."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from vflash_ports.errors import DeliveryError, VflashError
from vflash_ports.media import Latents, LatentStore


@frozen(kw_only=True)
class KeptLatents:
    """`path` is where they lie, None if no place took them; `trouble` says why not where they were meant to be."""

    wanted: Path
    path: Path | None
    trouble: str = ""

    def describe(self) -> dict[str, Any]:
        """For the receipt."""
        return {"path": None if self.path is None else str(self.path), "trouble": self.trouble or None}

    def require_wanted(self, done: str) -> None:
        """Raise `DeliveryError` unless they are where they were meant to be; `done` says what is well all the same."""
        if self.trouble:
            where = "they are kept nowhere" if self.path is None else f"they are kept at {self.path}"
            raise DeliveryError(f"{done}the latents could not be saved as asked: {self.trouble}; {where}")

    def discard(self) -> KeptLatents:
        """Once the clip is there that they were kept for."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            if self.path != self.wanted:
                self.path.parent.rmdir()
        return evolve(self, path=None)


def keep_latents(latents: Latents, store: LatentStore, wanted: Path) -> KeptLatents:
    """Save at `wanted`, else in a folder of its own in the system's temporary one, which is often another disk."""
    trouble = _saved(latents, store, wanted)
    if not trouble:
        return KeptLatents(wanted=wanted, path=wanted)
    with _second_folder() as folder:
        second = None if folder is None else folder / wanted.name
        worse = "no temporary folder can be made" if second is None else _saved(latents, store, second)
        if not worse:
            return KeptLatents(wanted=wanted, path=second, trouble=trouble)
    return KeptLatents(wanted=wanted, path=None, trouble=f"{trouble}; and {worse}")


def _saved(latents: Latents, store: LatentStore, path: Path) -> str:
    """Why not; empty if they are."""
    try:
        store.save(latents, path)
    except (VflashError, OSError) as error:
        return str(error)
    return ""


@contextmanager
def _second_folder() -> Iterator[Path | None]:
    """Readable by its owner alone; gone again if nothing was put there."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="vflash-latents-"))
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()
