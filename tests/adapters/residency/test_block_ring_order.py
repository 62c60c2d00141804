"""The ring's own ordering, watched through its lanes: what a device would see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
from attrs import define, field

from vflash_adapters.residency.block_ring import BlockRing
from vflash_ports.observer import SilentObserver
from vflash_ports.weights import TensorSpec


class OneNumber:
    """Block i is the number i."""

    def __init__(self, count: int) -> None:
        self.count = count

    def specs(self) -> Mapping[str, TensorSpec]:
        return {"n": TensorSpec(name="n", dtype=torch.int64, shape=(1,), byte_count=8)}

    def load_into(self, index: int, out: Mapping[str, torch.Tensor]) -> None:
        out["n"].fill_(index)


@define
class Watched:
    """A lane that refuses what a real device would silently get wrong."""

    log: list[str]
    name: str
    ready: bool = False
    in_use: bool = True  # fresh device memory may still be read by whoever had it before

    @contextmanager
    def copying(self) -> Iterator[None]:
        assert not self.in_use, "copied over a slot that queued compute still reads"
        yield
        self.ready = True
        self.log.append(f"copy {self.name}")

    def wait_ready(self) -> None:
        assert self.ready, "read a slot whose copy was never queued"
        self.in_use = True
        self.log.append(f"use {self.name}")

    def mark_done(self) -> None:
        self.in_use = False


@define
class Lanes:
    log: list[str] = field(factory=list)
    made: int = 0

    def __call__(self, device: torch.device) -> Callable[[], Watched]:
        def make() -> Watched:
            self.made += 1
            return Watched(self.log, f"slot {self.made - 1}")

        return make


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_copies_never_overtake_the_compute(count: int) -> None:
    """Every copy waits for the slot's compute, every use for its copy, over whole passes and an abandoned one."""
    lanes = Lanes()
    stack = BlockRing(lanes=lanes).load(OneNumber(count), lambda tensors: tensors["n"], torch.device("cpu"))
    for evaluation, stop in enumerate([count, 1, count, count]):
        numbers = []
        for block in stack.blocks(SilentObserver(), evaluation=evaluation):
            numbers.append(int(block))
            if len(numbers) == stop:
                break
        assert numbers == list(range(stop))


def test_the_next_block_is_on_its_way_before_it_is_needed() -> None:
    """From the second pass on, the first use follows no copy of its own: it was queued in the pass before."""
    lanes = Lanes()
    stack = BlockRing(lanes=lanes).load(OneNumber(4), lambda tensors: tensors["n"], torch.device("cpu"))
    for evaluation in range(2):
        lanes.log.clear()
        for _ in stack.blocks(SilentObserver(), evaluation=evaluation):
            pass
    assert lanes.log == ["use slot 0", "copy slot 0", "use slot 1", "copy slot 1"] * 2


def test_copies_and_waits_are_seen_by_the_observer() -> None:
    """One `ring_copy` and one `ring_wait` a block, with the evaluation that queued them."""
    seen: list[tuple[str, int, int]] = []

    class Recorder(SilentObserver):
        def phase(self, name, *, evaluation=-1, block=-1):  # type: ignore[no-untyped-def]
            seen.append((name, evaluation, block))
            return super().phase(name)

    stack = BlockRing().load(OneNumber(3), lambda tensors: tensors["n"], torch.device("cpu"))
    for evaluation in range(2):
        list(stack.blocks(Recorder(), evaluation=evaluation))
    waits = [(evaluation, block) for name, evaluation, block in seen if name == "ring_wait"]
    assert waits == [(evaluation, block) for evaluation in range(2) for block in range(3)]
    copies = [(evaluation, block) for name, evaluation, block in seen if name == "ring_copy"]
    assert copies == [(0, 0), (0, 1), (0, 2), (0, 0), (0, 1), (1, 2), (1, 0), (1, 1)]
