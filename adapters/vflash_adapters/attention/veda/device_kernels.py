"""The documented default: who computes the sparse calls on the device at hand, named in the report."""

from __future__ import annotations

import torch
from attrs import field, frozen

from vflash_adapters.attention.veda.kernels import SparseCall, VedaKernels
from vflash_adapters.attention.veda.reference import ReferenceKernels
from vflash_adapters.attention.veda.tiling import Tiling
from vflash_ports.attention import AttentionLayout


@frozen(kw_only=True)
class DeviceKernels:
    """`auto`: `hopper` on compute capability 9.0, `triton` on other CUDA devices, `reference` on a CPU."""

    name: str = field(default="auto", init=False)

    def prepare(self, tiling: Tiling, layout: AttentionLayout) -> SparseCall:
        return device_kernels(layout.device).prepare(tiling, layout)


def device_kernels(device: torch.device) -> VedaKernels:
    if device.type != "cuda":
        return ReferenceKernels()
    from vflash_adapters.attention.veda.fast import HOPPER, HopperKernels, TritonKernels

    return HopperKernels() if torch.cuda.get_device_capability(device) == HOPPER else TritonKernels()
