"""The documented default: the exact backend that measured best on the device at hand, named in the report."""

from __future__ import annotations

import torch
from attrs import frozen

from vflash_adapters.attention.sdpa import sdpa_attention
from vflash_ports.attention import AttentionFn, AttentionLayout

HOPPER = (9, 0)
"""From this compute capability on, cuDNN's kernel is faster than flash (docs/attention.md has the figures)."""


@frozen(kw_only=True)
class DeviceDefaultAttention:
    """`auto`: `sdpa` on a CPU, `sdpa-cudnn` from Hopper on, `sdpa-flash` before. Never approximate."""

    name: str = "auto"

    def held_bytes(self, layout: AttentionLayout) -> int:
        return sdpa_attention(default_backend(layout.device)).held_bytes(layout)

    def prepare(self, layout: AttentionLayout) -> AttentionFn:
        return sdpa_attention(default_backend(layout.device)).prepare(layout)


def default_backend(device: torch.device) -> str:
    if device.type == "cpu":
        return "sdpa"
    return "sdpa-cudnn" if torch.cuda.get_device_capability(device) >= HOPPER else "sdpa-flash"
