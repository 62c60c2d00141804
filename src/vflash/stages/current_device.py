"""Which of several CUDA devices a thread works on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes `device` this thread's current one: torch's kernels go where their tensors are, but Triton's, and new
    streams and events, go to the current device.

    Nothing to do on a CPU, for a device that is not there (`check_device` refuses it), and for `cuda` without a number,
    which is the current device: `numbered` says which.
    """
    if device.type != "cuda" or device.index is None:
        return nullcontext()
    if not torch.cuda.is_available() or device.index >= torch.cuda.device_count():
        return nullcontext()
    return torch.cuda.device(device)


def numbered(device: torch.device) -> torch.device:
    """`cuda` with the number of the calling thread's current device; anything else, and without CUDA, as it is."""
    if device.type != "cuda" or device.index is not None or not torch.cuda.is_available():
        return device
    return torch.device("cuda", torch.cuda.current_device())
