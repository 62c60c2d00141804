"""The whole block stack on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import torch

from vflash_ports.residency import BlockLoader, BlockStack, ResidencyMemory

Block = TypeVar("Block")


class Resident:
    """`resident`: every block is loaded once and stays."""

    name = "resident"

    def check(self, device: torch.device) -> None:
        """Runs wherever the stack fits; the plan says whether it does."""

    def load(
        self, loader: BlockLoader, bind: Callable[[Mapping[str, torch.Tensor]], Block], device: torch.device
    ) -> BlockStack[Block]:
        """See `Residency.load`; `bind` is called once a block."""
        specs = loader.specs()
        blocks, byte_count = [], 0
        for index in range(loader.count):
            tensors = {name: torch.empty(spec.shape, dtype=spec.dtype, device=device) for name, spec in specs.items()}
            loader.load_into(index, tensors)
            byte_count += sum(tensor.nbytes for tensor in tensors.values())
            blocks.append(bind(tensors))
        return _ResidentStack(blocks, byte_count, device)


class _ResidentStack(Generic[Block]):
    def __init__(self, blocks: list[Block], byte_count: int, device: torch.device) -> None:
        self._blocks = blocks
        self._byte_count = byte_count
        self._device = device

    def blocks(self) -> Iterator[Block]:
        return iter(self._blocks)

    def memory(self) -> ResidencyMemory:
        return ResidencyMemory(device_weight_bytes=self._byte_count)

    def close(self) -> None:
        if self._blocks and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._blocks = []
        self._byte_count = 0
