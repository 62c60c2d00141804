"""What a sparse call is made of, behind one seam: a readable reference and the fast path."""

from __future__ import annotations

from typing import Protocol

import torch

from vflash_adapters.attention.veda.predictor import Projections
from vflash_adapters.attention.veda.tiling import Tiling
from vflash_ports.attention import AttentionLayout


class SparseCall(Protocol):
    """The sparse attention of one request."""

    @property
    def name(self) -> str: ...

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        projections: Projections | None,
        head_shape: torch.Tensor,
    ) -> torch.Tensor:
        """q, k, v [S, H, D], rows possibly strided; `head_shape` int32 [H] on the device -> [S, H, D], maybe over q."""
        ...

    def kept_pairs(self) -> int:
        """Video query and key tile pairs kept so far, over all heads and calls; reads the device once."""
        ...


class VedaKernels(Protocol):
    """Raises `UnsupportedError` from `prepare` where the device, dtype or head size cannot run it."""

    @property
    def name(self) -> str: ...

    def prepare(self, tiling: Tiling, layout: AttentionLayout) -> SparseCall: ...
