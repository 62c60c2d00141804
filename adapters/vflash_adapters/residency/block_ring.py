"""Two device slots through which the stack streams from pinned host memory, one copy ahead of the compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import torch

from vflash_adapters.residency.arena import SLAB_BYTES, HostArena, aligned
from vflash_adapters.residency.lanes import Lane, LaneMaker, lane_maker
from vflash_adapters.residency.waiting import wait_for
from vflash_ports.errors import ClosedError
from vflash_ports.observer import Observer
from vflash_ports.residency import BlockLoader, BlockStack, ResidencyMemory

Block = TypeVar("Block")
Tensors = Mapping[str, torch.Tensor]
SLOTS = 2


class BlockRing:
    """`block-ring`: device memory for two blocks only; the whole stack lies packed in host memory.

    On a CPU the same ring runs without streams, from plain memory. `lanes` makes the ordering of each slot.
    """

    name = "block-ring"

    def __init__(self, *, slab_bytes: int = SLAB_BYTES, lanes: LaneMaker = lane_maker) -> None:
        self._slab_bytes = slab_bytes
        self._lanes = lanes

    def check(self, device: torch.device, stack_bytes: int) -> None:
        """Two blocks fit wherever the model runs at all; the plan says what the host needs."""

    def load(self, loader: BlockLoader, bind: Callable[[Tensors], Block], device: torch.device) -> BlockStack[Block]:
        """See `Residency.load`; `bind` is called once a slot. Blocks are read straight into the arena."""
        specs = loader.specs()
        total = loader.count * sum(aligned(spec.byte_count) for spec in specs.values())
        arena = HostArena(total, pinned=device.type == "cuda", slab_bytes=self._slab_bytes)
        host: list[dict[str, torch.Tensor]] = []
        try:
            for index in range(loader.count):
                host.append(arena.place(specs.values()))
                loader.load_into(index, host[-1])
            lane = self._lanes(device)
            slots = [_Slot(host[0], bind, device, lane()) for _ in range(min(SLOTS, loader.count))]
        except BaseException:
            host.clear()  # a caller that keeps the error must not keep the weights with it
            arena.close()
            raise
        return _Ring(host, slots, arena, device)


class _Slot(Generic[Block]):
    """Device memory of one block, bound once; `holds` is the block whose copy was queued last."""

    def __init__(self, like: Tensors, bind: Callable[[Tensors], Block], device: torch.device, lane: Lane) -> None:
        self.tensors = {name: torch.empty_like(tensor, device=device) for name, tensor in like.items()}
        self.block = bind(self.tensors)
        self.lane = lane
        self.holds: int | None = None

    @property
    def byte_count(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def stage(self, index: int, host: Tensors, observer: Observer, evaluation: int) -> None:
        """Queue the copy of block `index`, behind whatever still reads the slot."""
        if self.holds == index:
            return
        self.holds = None
        with self.lane.copying(), observer.phase("ring_copy", evaluation=evaluation, block=index):
            for name, tensor in self.tensors.items():
                tensor.copy_(host[name], non_blocking=True)
        self.holds = index


class _Ring(Generic[Block]):
    def __init__(
        self, host: list[dict[str, torch.Tensor]], slots: list[_Slot[Block]], arena: HostArena, device: torch.device
    ) -> None:
        self._host = host
        self._slots = slots
        self._arena = arena
        self._device = device
        self._first = 0  # the slot that block 0 goes through in the next pass
        self._pass = 0

    def blocks(self, observer: Observer, *, evaluation: int) -> Iterator[Block]:
        if not self._slots:
            raise ClosedError("these block weights were released; open the denoiser again")
        self._pass += 1
        return self._run(self._pass, observer, evaluation)

    def memory(self) -> ResidencyMemory:
        block = self._slots[0].byte_count if self._slots else 0
        return ResidencyMemory(
            device_weight_bytes=block * len(self._slots),
            block_bytes=block,
            pinned_payload_bytes=self._arena.payload_bytes,
            pinned_allocated_bytes=self._arena.allocated_bytes,
        )

    def close(self) -> None:
        if not self._slots:
            return
        wait_for(self._device)
        self._slots, self._host = [], []
        self._arena.close()

    def _run(self, number: int, observer: Observer, evaluation: int) -> Iterator[Block]:
        count = len(self._host)
        for slot in self._slots:
            slot.lane.mark_done()  # whatever a pass before left in use, or the allocator handed over, is queued by now
        for ahead in range(len(self._slots)):
            self._stage(ahead, observer, evaluation)
        for index in range(count):
            slot = self._slot(index)
            with observer.phase("ring_wait", evaluation=evaluation, block=index):
                slot.lane.wait_ready()
            yield slot.block
            assert number == self._pass, "a newer pass over the ring has started"
            slot.lane.mark_done()
            self._stage(index + len(self._slots), observer, evaluation)
        self._first = (self._first + count) % len(self._slots)

    def _stage(self, index: int, observer: Observer, evaluation: int) -> None:
        """Past the end it wraps: the first blocks of the next evaluation are on their way before it begins."""
        block = index % len(self._host)
        self._slot(index).stage(block, self._host[block], observer, evaluation)

    def _slot(self, index: int) -> _Slot[Block]:
        return self._slots[(self._first + index) % len(self._slots)]
