"""The documented default: the exact backend that measured best on the device at hand, named in the report."""

from __future__ import annotations

import torch
from attrs import frozen

from vflash_adapters.attention.hopper.adapter import HopperAttention
from vflash_adapters.attention.hopper.admission import admits
from vflash_adapters.attention.sdpa import SDPA_BACKENDS
from vflash_ports.attention import Attention, AttentionFn, AttentionLayout

CUDNN_FROM = (9, 0)
"""From this compute capability on, cuDNN's kernel is faster than flash (docs/attention.md has the figures)."""
DEVICE_BACKENDS: tuple[Attention, ...] = (*SDPA_BACKENDS, HopperAttention())
"""The exact backends of one kind of device each, from which `auto` chooses."""


@frozen(kw_only=True)
class DeviceDefaultAttention:
    """`auto`: what `default_backend` says of the layout. Never approximate, and never another one where that fails."""

    name: str = "auto"

    def held_bytes(self, layout: AttentionLayout) -> int:
        return exact_backend(default_backend(layout)).held_bytes(layout)

    def prepare(self, layout: AttentionLayout) -> AttentionFn:
        return exact_backend(default_backend(layout)).prepare(layout)


def default_backend(layout: AttentionLayout) -> str:
    """By the layout's device, dtype and head size alone.

    `hopper` on compute capability 9.0 for 16-bit heads of 64 or 128; otherwise `sdpa-cudnn` from 9.0 on, `sdpa-flash`
    on older CUDA devices, and `sdpa` on a CPU.
    """
    if layout.device.type != "cuda":
        return "sdpa"
    if admits(layout.device, layout.dtype, layout.head_dim):
        return "hopper"
    return "sdpa-cudnn" if torch.cuda.get_device_capability(layout.device) >= CUDNN_FROM else "sdpa-flash"


def exact_backend(name: str) -> Attention:
    """The named entry of `DEVICE_BACKENDS`."""
    return next(backend for backend in DEVICE_BACKENDS if backend.name == name)
