"""The video VAE's transformer decoder over a batch of tiles, on fused kernels.

It rounds where the module's own forward rounds: the residual stream and the norms are float32, everything between is
in the decoder's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen

from vflash_adapters.latent_codec.decoder_kernels import DecoderKernels
from vflash_adapters.latent_codec.decoder_linears import BindLinear, DecoderLinear
from vflash_ports.linear import Fp8Rows


class VitDecoder:
    """A `DecodeTiles`, made for one clip: what its linears copy (`_BlockLinears`) lives as long."""

    def __init__(self, vae: Any, kernels: DecoderKernels) -> None:
        self._vae = vae
        self._blocks = list(vae.decoder.transformer_blocks)
        self._kernels = kernels
        self._swiglu = kernels.block.swiglu
        self._dtype = vae.decoder.proj_out.weight.dtype
        self._linears = [_BlockLinears.of(block, kernels.linear) for block in self._blocks]

    def __call__(self, tiles: torch.Tensor) -> torch.Tensor:
        decoder = self._vae.decoder
        latents = self._vae.post_quant_conv(tiles)
        count, _, *grid = latents.shape
        tokens = math.prod(grid)
        x = self._embed(latents)
        angles = self._angles(grid, x.shape[0] // count - tokens)
        self._run(x, angles, count)
        hidden = decoder.norm_out(x.view(count, -1, x.shape[1])[:, :tokens]).to(self._dtype)
        return _unpatch(decoder.proj_out(hidden), (count, *grid), decoder)

    def _run(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], count: int) -> None:
        """Every block over x, in x's storage."""
        last = len(self._blocks) - 1
        normed = self._norm(x, self._blocks[0].norm1, self._linears[0].qkv)
        for number, (block, linears) in enumerate(zip(self._blocks, self._linears, strict=True)):
            update = linears.out(self._attend(block.attn, linears.qkv(normed), angles, count))
            normed = self._norm(x, block.norm2, linears.ff_in, update=update, scale=block.scale1)
            update = linears.ff_out(self._swiglu(linears.ff_in(normed), emit=linears.ff_out.consumes))
            if number == last:
                x += update * block.scale2
            else:
                norm, reader = self._blocks[number + 1].norm1, self._linears[number + 1].qkv
                normed = self._norm(x, norm, reader, update=update, scale=block.scale2)

    def _norm(self, x: torch.Tensor, norm: Any, reader: DecoderLinear, **residual: Any) -> torch.Tensor | Fp8Rows:
        return self._kernels.residual_norm(
            x, norm.weight, eps=norm.eps, dtype=self._dtype, emit=reader.consumes, **residual
        )

    def _attend(
        self, attn: Any, qkv: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], count: int
    ) -> torch.Tensor:
        self._kernels.head_norm_rope(qkv, *angles, heads=attn.heads, eps=attn.norm_q.eps)
        return self._kernels.attention(*qkv.unflatten(0, (count, -1)).unflatten(2, (3, attn.heads, -1)).unbind(2))

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


@frozen(kw_only=True, eq=False)
class _BlockLinears:
    """One block's. q, k and v are one, over a copy of their weights; the others are over the module's own, unless
    `bind` copies them."""

    qkv: DecoderLinear
    out: DecoderLinear
    ff_in: DecoderLinear
    ff_out: DecoderLinear

    @classmethod
    def of(cls, block: Any, bind: BindLinear) -> _BlockLinears:
        parts = (block.attn.to_q, block.attn.to_k, block.attn.to_v)
        bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
        out, ff_in, ff_out = block.attn.to_out[0], block.ff.net[0].proj, block.ff.net[2]
        return cls(
            qkv=bind(torch.cat([part.weight for part in parts]), bias),
            out=bind(out.weight, out.bias),
            ff_in=bind(ff_in.weight, ff_in.bias),
            ff_out=bind(ff_out.weight, ff_out.bias),
        )


def _unpatch(patches: torch.Tensor, shape: Sequence[int], decoder: Any) -> torch.Tensor:
    """[tiles, tokens, 3 * pt * p * p] -> [tiles, 3, T * pt, h * p, w * p]."""
    count, frames, height, width = shape
    deep, side = decoder.patch_size_t, decoder.patch_size
    cells = patches.view(count, frames, height, width, decoder.out_channels, deep, side, side)
    return cells.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(
        count, decoder.out_channels, frames * deep, height * side, width * side
    )
