"""What the video VAE's transformer decoder runs on, and the plain torch form of what is its own."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from attrs import frozen

from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.latent_codec.decoder_linears import BindLinear
from vflash_adapters.linear.row_quantiser import quantise_rows
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.linear import ActivationFormat, Fp8Rows


class ScaledResidualNorm(Protocol):
    """x [S, C] float32 += update * scale, in x's storage, where an update is given -> RMSNorm(x) * weight, [S, C].

    `update` [S, C] in the decoder's dtype, `scale` and `weight` [C] float32; the result is rounded to `dtype`, then
    quantised by row where `emit` says so.
    """

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        eps: float,
        dtype: torch.dtype,
        emit: ActivationFormat = ActivationFormat.DENSE,
        update: torch.Tensor | None = None,
        scale: torch.Tensor | None = None,
    ) -> torch.Tensor | Fp8Rows: ...


class HeadNormRope(Protocol):
    """qkv [S, 3*H*D] as q, k, v thirds; cos, sin [T, r] float32, S a multiple of T: row s turns by angle s mod T.

    RMSNorm of each head of q and k, without a weight, then rotate-half of its first r channels; both are written over
    their thirds. Each operation rounds to qkv's dtype, cosine and sine first.
    """

    def __call__(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, heads: int, eps: float) -> None: ...


class TileAttention(Protocol):
    """q, k, v [tiles, S, H, D], views of one fused projection -> [tiles * S, H*D], contiguous.

    Each tile's rows attend to all of that tile's, scaled by 1 / sqrt(D); exact, in float32 sums.
    """

    def __call__(self, q_BSHD: torch.Tensor, k_BSHD: torch.Tensor, v_BSHD: torch.Tensor) -> torch.Tensor: ...


@frozen(kw_only=True, eq=False)
class DecoderKernels:
    """`linear` binds every block's weights."""

    block: BlockKernels
    residual_norm: ScaledResidualNorm
    head_norm_rope: HeadNormRope
    attention: TileAttention
    linear: BindLinear


def scaled_residual_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    dtype: torch.dtype,
    emit: ActivationFormat = ActivationFormat.DENSE,
    update: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
) -> torch.Tensor | Fp8Rows:
    """`ScaledResidualNorm` in plain torch."""
    if update is not None and scale is not None:
        x += update * scale
    normed = F.rms_norm(x, weight.shape, weight, eps).to(dtype)
    return quantise_rows(normed) if emit is ActivationFormat.FP8_ROWS else normed


def head_norm_rope(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, heads: int, eps: float) -> None:
    """`HeadNormRope` in plain torch."""
    times = qkv.shape[0] // cos.shape[0]
    ones = qkv.new_ones(qkv.shape[1] // (3 * heads))
    TorchBlockKernels().qk_norm_rope(qkv, ones, ones, cos.repeat(times, 1), sin.repeat(times, 1), heads=heads, eps=eps)
