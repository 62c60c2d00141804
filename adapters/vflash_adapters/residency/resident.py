"""The whole block stack on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import torch

from vflash_adapters.residency.cards import Card, check_resident, read_card
from vflash_adapters.residency.waiting import wait_for
from vflash_ports.errors import ClosedError
from vflash_ports.observer import Observer
from vflash_ports.residency import BlockLoader, BlockStack, ResidencyMemory

Block = TypeVar("Block")


class Resident:
    """`resident`: every block is loaded once and stays. `card` tells what a CUDA device is."""

    name = "resident"

    def __init__(self, *, card: Callable[[torch.device], Card] = read_card) -> None:
        self._card = card

    def check(self, device: torch.device, stack_bytes: int) -> None:
        """On a CUDA device by the table of `cards`; a CPU holds what the host holds."""
        if device.type == "cuda":
            check_resident(self._card(device), stack_bytes)

    def load(
        self, loader: BlockLoader, bind: Callable[[Mapping[str, torch.Tensor]], Block], device: torch.device
    ) -> BlockStack[Block]:
        """See `Residency.load`; `bind` is called once a block."""
        specs = loader.specs()
        blocks: list[Block] = []
        try:
            for index in range(loader.count):
                tensors = {
                    name: torch.empty(spec.shape, dtype=spec.dtype, device=device) for name, spec in specs.items()
                }
                loader.load_into(index, tensors)
                blocks.append(bind(tensors))
        except BaseException:
            blocks.clear()  # a caller that keeps the error must not keep the weights with it
            raise
        return _ResidentStack(blocks, sum(spec.byte_count for spec in specs.values()), device)


class _ResidentStack(Generic[Block]):
    def __init__(self, blocks: list[Block], block_bytes: int, device: torch.device) -> None:
        self._blocks = blocks
        self._block_bytes = block_bytes
        self._device = device

    def blocks(self, observer: Observer, *, evaluation: int) -> Iterator[Block]:
        if not self._blocks:
            raise ClosedError("these block weights were released; open the denoiser again")
        return iter(self._blocks)

    def memory(self) -> ResidencyMemory:
        block = self._block_bytes if self._blocks else 0
        return ResidencyMemory(device_weight_bytes=block * len(self._blocks), block_bytes=block)

    def close(self) -> None:
        if self._blocks:
            wait_for(self._device)
            self._blocks = []
