"""The documented default: who computes the sparse calls on the device at hand, named in the report."""

from __future__ import annotations

from types import ModuleType

import torch
from attrs import field, frozen

from vflash_adapters.attention.hopper.admission import CAPABILITY
from vflash_adapters.attention.veda.kernels import SparseCall, VedaKernels
from vflash_adapters.attention.veda.reference import ReferenceKernels
from vflash_adapters.attention.veda.tiling import Tiling
from vflash_ports.attention import AttentionLayout
from vflash_ports.errors import UnsupportedError


@frozen(kw_only=True)
class DeviceKernels:
    """`auto`: `hopper` on compute capability 9.0, `triton` on other CUDA devices, `reference` on a CPU."""

    name: str = field(default="auto", init=False)

    def prepare(self, tiling: Tiling, layout: AttentionLayout) -> SparseCall:
        return device_kernels(layout.device).prepare(tiling, layout)


def named_kernels(name: str) -> VedaKernels:
    """`auto`, `hopper`, `triton` or `reference`. Raises `UnsupportedError` where Triton is needed and missing."""
    if name in ("auto", "reference"):
        return DeviceKernels() if name == "auto" else ReferenceKernels()
    fast = _fast()
    return fast.HopperKernels() if name == "hopper" else fast.TritonKernels()


def device_kernels(device: torch.device) -> VedaKernels:
    if device.type != "cuda":
        return ReferenceKernels()
    return named_kernels("hopper" if torch.cuda.get_device_capability(device) == CAPABILITY else "triton")


def _fast() -> ModuleType:
    try:
        from vflash_adapters.attention.veda import fast
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "Veda's GPU kernels need Triton: install vflash[gpu], or choose veda_kernels='reference'"
        ) from error
    return fast
