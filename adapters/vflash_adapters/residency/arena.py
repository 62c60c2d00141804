"""Host memory in slabs: tensors are placed one behind the other, and never move."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from vflash_adapters.residency.pinned_memory import HostSlab
from vflash_ports.errors import ContractError
from vflash_ports.weights import TensorSpec

ALIGNMENT = 256
SLAB_BYTES = 2 * 2**30


def aligned(byte_count: int) -> int:
    return -(-byte_count // ALIGNMENT) * ALIGNMENT


class HostArena:
    """Room for `total_bytes` of tensors, each rounded up to 256 bytes, in slabs of at most `slab_bytes`.

    A tensor lies whole in the first slab that still has room, so the ends of slabs serve the smaller tensors; the last
    slab is only as large as what is left to place.
    """

    def __init__(self, total_bytes: int, *, pinned: bool, slab_bytes: int = SLAB_BYTES) -> None:
        if slab_bytes < ALIGNMENT or slab_bytes & (slab_bytes - 1):
            raise ContractError(f"slab_bytes must be a power of two of at least {ALIGNMENT}, got {slab_bytes}")
        self._slab_bytes = slab_bytes
        self._left = total_bytes
        self._pinned = pinned
        self._slabs: list[HostSlab] = []
        self._ends: list[int] = []
        self.payload_bytes = 0

    @property
    def allocated_bytes(self) -> int:
        return sum(slab.bytes.nbytes for slab in self._slabs)

    def place(self, specs: Iterable[TensorSpec]) -> dict[str, torch.Tensor]:
        """Uninitialised tensors by name; they keep their slab's memory alive on their own."""
        return {spec.name: self._place(spec) for spec in specs}

    def close(self) -> None:
        """Unlock and let go of every slab; idempotent."""
        while self._slabs:
            self._slabs[-1].close()
            self._slabs.pop()
        self._ends.clear()
        self.payload_bytes = 0

    def _place(self, spec: TensorSpec) -> torch.Tensor:
        size = aligned(spec.byte_count)
        if size > self._slab_bytes:
            raise ContractError(f"tensor {spec.name} of {size} bytes does not fit a slab of {self._slab_bytes}")
        slab = self._slab_for(size)
        start = self._ends[slab]
        self._ends[slab] += size
        self._left -= size
        self.payload_bytes += spec.byte_count
        taken = self._slabs[slab].bytes[start : start + spec.byte_count]
        return taken.view(spec.dtype).view(spec.shape)

    def _slab_for(self, size: int) -> int:
        for number, slab in enumerate(self._slabs):
            if self._ends[number] + size <= slab.bytes.nbytes:
                return number
        assert size <= self._left, "more was placed than the arena was made for"
        self._slabs.append(HostSlab(min(self._slab_bytes, self._left), pinned=self._pinned))
        self._ends.append(0)
        return len(self._slabs) - 1
