"""What the machine can hold, asked before anything loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import torch


@frozen(kw_only=True)
class MachineLimits:
    """Bytes this process may hold, counting what it holds already. `device_bytes` is None where the host is the
    device."""

    device: str
    device_bytes: int | None
    host_bytes: int


class MachineReader(Protocol):
    def __call__(self, device: torch.device) -> MachineLimits: ...
