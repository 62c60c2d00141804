"""The fast path: pool, score, select and attend on the device, nothing copied, nothing waited for."""

from __future__ import annotations

import torch
from attrs import define, field, frozen

from vflash_adapters.attention.veda.kept_lists import KeptLists, allocate_lists
from vflash_adapters.attention.veda.predictor import Projections
from vflash_adapters.attention.veda.scores import block_logits
from vflash_adapters.attention.veda.tiling import Tiling
from vflash_adapters.attention.veda.triton_attend import AttendConfig, attend_kept
from vflash_adapters.attention.veda.triton_pool import pool_tiles
from vflash_adapters.attention.veda.triton_select import select_tiles
from vflash_ports.attention import AttentionLayout
from vflash_ports.errors import UnsupportedError

DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (16, 32, 64, 128)
MIN_CAPABILITY = (8, 0)


@frozen(kw_only=True)
class TritonKernels:
    """Triton kernels for CUDA devices of compute capability 8.0 and up."""

    config: AttendConfig = field(factory=AttendConfig)
    name: str = field(default="triton", init=False)

    def prepare(self, tiling: Tiling, layout: AttentionLayout) -> TritonSparseCall:
        self._check(layout)
        return TritonSparseCall(
            tiling=tiling,
            config=self.config,
            kept=allocate_lists(tiling, layout.heads),
            pairs=torch.zeros(layout.heads, dtype=torch.int64, device=layout.device),
        )

    def _check(self, layout: AttentionLayout) -> None:
        cure = "choose veda_kernels='reference', or an exact attention backend"
        if layout.device.type != "cuda":
            raise UnsupportedError(f"Veda's Triton kernels run on CUDA, but the model is on {layout.device}; {cure}")
        if torch.cuda.get_device_capability(layout.device) < MIN_CAPABILITY:
            raise UnsupportedError(f"Veda's Triton kernels need compute capability 8.0 on {layout.device}; {cure}")
        if layout.dtype not in DTYPES:
            raise UnsupportedError(f"Veda's Triton kernels take bfloat16 or float16, not {layout.dtype}; {cure}")
        if layout.head_dim not in HEAD_DIMS:
            raise UnsupportedError(f"Veda's Triton kernels take head sizes {HEAD_DIMS}, not {layout.head_dim}; {cure}")


@define(kw_only=True, eq=False)
class TritonSparseCall:
    """Calls run one after another on one stream and share the lists of kept tiles."""

    tiling: Tiling
    config: AttendConfig
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
        q_features, k_features = pool_tiles(q, k, self.tiling, head_shape)
        logits = block_logits(q_features, k_features, projections)
        select_tiles(logits, self.tiling, head_shape, self.kept, self.pairs)
        return attend_kept(q, k, v, self.kept, tiling=self.tiling, head_shape=head_shape, config=self.config)

    def kept_pairs(self) -> int:
        return int(self.pairs.sum())
