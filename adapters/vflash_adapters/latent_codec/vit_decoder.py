"""The video VAE's transformer decoder over a batch of tiles, on fused kernels.

It rounds where the module's own forward rounds: the residual stream and the norms are float32, everything between is
in the decoder's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from attrs import frozen
from torch.nn.attention import SDPBackend, sdpa_kernel

from vflash_ports.block_kernels import BlockKernels
from vflash_ports.linear import ActivationFormat


class ScaledResidualNorm(Protocol):
    """x [S, C] float32 += update * scale, in x's storage, where an update is given -> RMSNorm(x) * weight, [S, C].

    `update` [S, C] in the decoder's dtype, `scale` and `weight` [C] float32; the result is rounded to `dtype`.
    """

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        eps: float,
        dtype: torch.dtype,
        update: torch.Tensor | None = None,
        scale: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


def scaled_residual_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    dtype: torch.dtype,
    update: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """`ScaledResidualNorm` in plain torch."""
    if update is not None and scale is not None:
        x += update * scale
    return F.rms_norm(x, weight.shape, weight, eps).to(dtype)


@frozen(kw_only=True, eq=False)
class DecoderKernels:
    """What the decoder runs on; `attention` are the kernels that torch may choose from, the best first."""

    block: BlockKernels
    residual_norm: ScaledResidualNorm
    attention: Sequence[SDPBackend]


class VitDecoder:
    """A `DecodeTiles`, made for one clip: it holds a fused copy of the attention's input projections (0.9 GiB)."""

    def __init__(self, vae: Any, kernels: DecoderKernels) -> None:
        self._vae = vae
        self._blocks = list(vae.decoder.transformer_blocks)
        self._kernels = kernels
        self._dtype = vae.decoder.proj_out.weight.dtype
        self._qkv = [_fused_qkv(block.attn) for block in self._blocks]

    def __call__(self, tiles: torch.Tensor) -> torch.Tensor:
        decoder = self._vae.decoder
        latents = self._vae.post_quant_conv(tiles)
        count, _, *grid = latents.shape
        tokens = math.prod(grid)
        x = self._embed(latents)
        cos, sin = self._angles(grid, x.shape[0] // count - tokens)
        with sdpa_kernel(list(self._kernels.attention), set_priority=True):
            self._run(x, cos.repeat(count, 1), sin.repeat(count, 1), count)
        hidden = decoder.norm_out(x.view(count, -1, x.shape[1])[:, :tokens]).to(self._dtype)
        return _unpatch(decoder.proj_out(hidden), (count, *grid), decoder)

    def _run(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, count: int) -> None:
        """Every block over x, in x's storage."""
        last = len(self._blocks) - 1
        normed = self._norm(x, self._blocks[0].norm1)
        for number, block in enumerate(self._blocks):
            update = self._attend(number, normed, cos, sin, count)
            normed = self._norm(x, block.norm2, update=update, scale=block.scale1)
            update = self._feed_forward(block.ff, normed)
            if number < last:
                normed = self._norm(x, self._blocks[number + 1].norm1, update=update, scale=block.scale2)
            else:
                x += update * block.scale2

    def _norm(self, x: torch.Tensor, norm: Any, **residual: Any) -> torch.Tensor:
        return self._kernels.residual_norm(x, norm.weight, eps=norm.eps, dtype=self._dtype, **residual)

    def _attend(
        self, number: int, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, count: int
    ) -> torch.Tensor:
        attn = self._blocks[number].attn
        qkv = F.linear(normed, *self._qkv[number])
        plain = qkv.new_ones(qkv.shape[1] // (3 * attn.heads))  # its q and k norms have no weight
        parts = self._kernels.block.qk_norm_rope(qkv, plain, plain, cos, sin, heads=attn.heads, eps=attn.norm_q.eps)
        q, k, v = (part.unflatten(0, (count, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).flatten(0, 1)
        update: torch.Tensor = attn.to_out[0](mixed)
        return update

    def _feed_forward(self, ff: Any, normed: torch.Tensor) -> torch.Tensor:
        hidden = self._kernels.block.swiglu(ff.net[0].proj(normed), emit=ActivationFormat.DENSE)
        update: torch.Tensor = ff.net[2](hidden)
        return update

    def _embed(self, latents: torch.Tensor) -> torch.Tensor:
        """[tiles, C, T, h, w] -> float32 [tiles * (tokens + registers + 1), width]: registers, then one zero token."""
        decoder = self._vae.decoder
        tokens = decoder.proj_in(latents.flatten(2).transpose(1, 2))
        registers = decoder.register_tokens.expand(len(tokens), -1, -1).to(tokens.dtype)
        rows = torch.cat([tokens, registers, torch.zeros_like(tokens[:, :1])], dim=1)
        return rows.flatten(0, 1).float()

    def _angles(self, grid: Sequence[int], extra: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin [tokens + extra, rotary] float32: coordinates in [-1, 1) an axis, the extra tokens at zero."""
        frequencies = self._vae.decoder.rope.inv_freq
        axes = [
            2.0 * (torch.arange(0.5, size, dtype=torch.float32, device=frequencies.device) / size) - 1.0
            for size in grid
        ]
        places = torch.cartesian_prod(*axes)
        places = torch.cat([places, places.new_zeros(extra, len(axes))])
        angles = (2.0 * math.pi * places[:, :, None] * frequencies).flatten(1).repeat(1, 2)
        return angles.cos(), angles.sin()


def _fused_qkv(attn: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    linears = (attn.to_q, attn.to_k, attn.to_v)
    weight = torch.cat([linear.weight for linear in linears])
    return weight, None if attn.to_q.bias is None else torch.cat([linear.bias for linear in linears])


def _unpatch(patches: torch.Tensor, shape: Sequence[int], decoder: Any) -> torch.Tensor:
    """[tiles, tokens, 3 * pt * p * p] -> [tiles, 3, T * pt, h * p, w * p]."""
    count, frames, height, width = shape
    deep, side = decoder.patch_size_t, decoder.patch_size
    cells = patches.view(count, frames, height, width, decoder.out_channels, deep, side, side)
    return cells.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(
        count, decoder.out_channels, frames * deep, height * side, width * side
    )
