"""Waiting for a device before its memory is let go."""

from __future__ import annotations

import torch

from vflash_ports.errors import ExecutionError


def wait_for(device: torch.device) -> None:
    """Raises `ExecutionError` if the device does not come to rest: its memory must not be freed then."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise ExecutionError(
            f"{device} cannot be waited for, so its weights are kept; end this process: {error}"
        ) from error
