"""A module whose weights wait in host memory and are on the device only while they work.

Nothing is copied back: the host keeps the masters, and what was on the device is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from attrs import frozen
from torch import nn

from vflash_adapters.residency.arena import SLAB_BYTES, HostArena, aligned
from vflash_adapters.residency.waiting import wait_for
from vflash_ports.weights import TensorSpec


@frozen(eq=False)
class _Master:
    """One parameter's place in its module, and its tensor in host memory."""

    owner: nn.Module
    name: str
    tensor: torch.Tensor

    def bring(self, device: torch.device) -> None:
        copy = torch.empty_like(self.tensor, device=device).copy_(self.tensor, non_blocking=True)
        self.owner._parameters[self.name] = nn.Parameter(copy, requires_grad=False)

    def put_back(self) -> None:
        self.owner._parameters[self.name] = nn.Parameter(self.tensor, requires_grad=False)


class HostMasters:
    """`module`'s parameters must be on the CPU in the dtypes they run in; its buffers are moved to the device and stay.

    `owned` copies the masters into memory of this process, pinned for a CUDA device, so that neither the page cache nor
    a disk is needed again; without it they stay where they are, for a module that works once.
    """

    def __init__(self, module: nn.Module, device: torch.device, *, owned: bool, slab_bytes: int = SLAB_BYTES) -> None:
        self._device = device
        self._arena: HostArena | None = None
        self._hooks: list[Any] = []
        self._masters = [
            _Master(owner, name, parameter.detach())
            for owner in module.modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None
        ]
        if owned:
            self._own(slab_bytes)
        for owner in module.modules():
            for name, buffer in owner._buffers.items():
                owner._buffers[name] = None if buffer is None else buffer.to(device)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """All of the module on the device."""
        try:
            for master in self._masters:
                master.bring(self._device)
            yield
        finally:
            for master in self._masters:
                master.put_back()

    def stream(self) -> None:
        """From here on each submodule with weights of its own brings them for its own forward alone."""
        by_owner: dict[nn.Module, list[_Master]] = {}
        for master in self._masters:
            by_owner.setdefault(master.owner, []).append(master)
        for owner, masters in by_owner.items():
            self._hooks.append(owner.register_forward_pre_hook(_bringing(masters, self._device)))
            self._hooks.append(owner.register_forward_hook(_putting_back(masters), always_call=True))

    def close(self) -> None:
        """Let go of the masters; the module is of no use afterwards. Idempotent."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for master in self._masters:
            master.owner._parameters[master.name] = None
        self._masters.clear()
        if self._arena is not None:
            wait_for(self._device)
            self._arena.close()

    def _own(self, slab_bytes: int) -> None:
        specs = [_spec(number, master.tensor) for number, master in enumerate(self._masters)]
        total = sum(aligned(spec.byte_count) for spec in specs)
        self._arena = HostArena(total, pinned=self._device.type == "cuda", slab_bytes=slab_bytes)
        for number, spec in enumerate(specs):
            master = self._masters[number]
            place = self._arena.place([spec])[spec.name].copy_(master.tensor)
            self._masters[number] = _Master(master.owner, master.name, place)
            self._masters[number].put_back()


def _spec(number: int, tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(name=str(number), dtype=tensor.dtype, shape=tuple(tensor.shape), byte_count=tensor.nbytes)


def _bringing(masters: list[_Master], device: torch.device) -> Any:
    def hook(_module: nn.Module, _inputs: object) -> None:
        for master in masters:
            master.bring(device)

    return hook


def _putting_back(masters: list[_Master]) -> Any:
    def hook(_module: nn.Module, _inputs: object, _output: object) -> None:
        for master in masters:
            master.put_back()

    return hook
