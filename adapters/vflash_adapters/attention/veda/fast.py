"""The fast path: pool, score, select and attend on the device, nothing copied, nothing waited for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import define, field, frozen

from vflash_adapters.attention.hopper.admission import CAPABILITY, HEAD_DIMS, gluon_kernel
from vflash_adapters.attention.veda import triton_attend
from vflash_adapters.attention.veda.kept_lists import KeptLists, allocate_lists
from vflash_adapters.attention.veda.predictor import Projections
from vflash_adapters.attention.veda.tiling import Tiling
from vflash_adapters.attention.veda.triton_attend import AttendConfig
from vflash_adapters.attention.veda.triton_pool import pool_tiles
from vflash_adapters.attention.veda.triton_score import block_logits
from vflash_adapters.attention.veda.triton_select import select_tiles
from vflash_ports.attention import AttentionLayout
from vflash_ports.errors import UnsupportedError

DTYPES = (torch.bfloat16, torch.float16)
Attend = Callable[..., torch.Tensor]
"""(q, k, v, kept, *, tiling, head_shape, config) -> [S, H, D], over q."""


@frozen(kw_only=True)
class TritonKernels:
    """Triton kernels for CUDA devices of compute capability 8.0 and up."""

    config: AttendConfig = field(factory=AttendConfig)
    name: str = field(default="triton", init=False)

    def prepare(self, tiling: Tiling, layout: AttentionLayout) -> FastSparseCall:
        _check(layout, self.name, head_dims=(16, 32, 64, 128), lowest=(8, 0), highest=None)
        return prepare_call(self.name, tiling, layout, triton_attend.attend_kept, self.config)


@frozen(kw_only=True)
class HopperKernels:
    """The same, with an attention kernel made for compute capability 9.0."""

    name: str = field(default="hopper", init=False)

    def prepare(self, tiling: Tiling, layout: AttentionLayout) -> FastSparseCall:
        _check(layout, self.name, head_dims=HEAD_DIMS, lowest=CAPABILITY, highest=CAPABILITY)
        with gluon_kernel(f"Veda kernels {self.name!r}", "choose veda_kernels='triton', or an exact attention backend"):
            from vflash_adapters.attention.veda.hopper_attend import HopperConfig, attend_kept
        return prepare_call(self.name, tiling, layout, attend_kept, HopperConfig())


@define(kw_only=True, eq=False)
class FastSparseCall:
    """Calls run one after another on one stream and share the lists of kept tiles."""

    name: str
    tiling: Tiling
    attend: Attend
    config: object
    kept: KeptLists
    pairs: torch.Tensor

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        projections: Projections | None,
        head_shape: torch.Tensor,
    ) -> torch.Tensor:
        logits = block_logits(pool_tiles(q, k, self.tiling, head_shape), projections)
        select_tiles(logits, self.tiling, head_shape, self.kept, self.pairs)
        return self.attend(q, k, v, self.kept, tiling=self.tiling, head_shape=head_shape, config=self.config)

    def kept_pairs(self) -> int:
        return int(self.pairs.sum())


def prepare_call(name: str, tiling: Tiling, layout: AttentionLayout, attend: Attend, config: object) -> FastSparseCall:
    return FastSparseCall(
        name=name,
        tiling=tiling,
        attend=attend,
        config=config,
        kept=allocate_lists(tiling, layout.heads),
        pairs=torch.zeros(layout.heads, dtype=torch.int64, device=layout.device),
    )


def _check(
    layout: AttentionLayout,
    name: str,
    *,
    head_dims: tuple[int, ...],
    lowest: tuple[int, int],
    highest: tuple[int, int] | None,
) -> None:
    what = f"Veda kernels {name!r}"
    cure = "choose veda_kernels='auto', or an exact attention backend"
    if layout.device.type != "cuda":
        raise UnsupportedError(f"{what} run on CUDA, but the model is on {layout.device}; {cure}")
    capability = torch.cuda.get_device_capability(layout.device)
    if capability < lowest or (highest and capability > highest):
        raise UnsupportedError(f"{what} do not run on compute capability {capability} of {layout.device}; {cure}")
    if layout.dtype not in DTYPES:
        raise UnsupportedError(f"{what} take bfloat16 or float16, not {layout.dtype}; {cure}")
    if layout.head_dim not in head_dims:
        raise UnsupportedError(f"{what} take head sizes {head_dims}, not {layout.head_dim}; {cure}")
