"""The decoder's blocks with their memory-bound stages in the project's own kernels; the weights stay the VAE's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen

from vflash_ports.block_kernels import BlockKernels
from vflash_ports.linear import ActivationFormat


@frozen(kw_only=True, eq=False)
class FusedBlock:
    """One transformer block of the video VAE: fused QKV, per-head norm and rotary in place, SwiGLU in one pass."""

    block: Any
    kernels: BlockKernels
    qkv_weight: torch.Tensor
    qkv_bias: torch.Tensor
    ones: torch.Tensor
    """The per-head norms have no weights of their own."""

    @classmethod
    def of(cls, block: Any, kernels: BlockKernels) -> FusedBlock:
        parts = (block.attn.to_q, block.attn.to_k, block.attn.to_v)
        weight = torch.cat([part.weight for part in parts])
        return cls(
            block=block,
            kernels=kernels,
            qkv_weight=weight,
            qkv_bias=torch.cat([part.bias for part in parts]),
            ones=weight.new_ones(block.attn.dim_head),
        )

    def __call__(self, x_BSC: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """x [B, S, C] float32, cosine and sine [B, S, 1, r] -> x [B, S, C]."""
        block, x_BSC = self.block, x_BSC.float()  # the first block is handed BF16
        x_BSC = torch.addcmul(x_BSC, self._attention(self._normed(block.norm1, x_BSC), rotary), block.scale1)
        return torch.addcmul(x_BSC, self._ffn(self._normed(block.norm2, x_BSC)), block.scale2)

    def _normed(self, norm: Any, x_BSC: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x_BSC, norm.normalized_shape, norm.weight, norm.eps).to(self.qkv_weight.dtype)

    def _attention(self, x_BSC: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        attn, (batch, rows, _) = self.block.attn, x_BSC.shape
        cos, sin = (angles.flatten(0, 2) for angles in rotary)
        qkv = F.linear(x_BSC.flatten(0, 1), self.qkv_weight, self.qkv_bias)
        parts = self.kernels.qk_norm_rope(qkv, self.ones, self.ones, cos, sin, heads=attn.heads, eps=attn.norm_q.eps)
        q, k, v = (part.view(batch, rows, attn.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        projected: torch.Tensor = attn.to_out[0](mixed)
        return projected.to(torch.float32)

    def _ffn(self, x_BSC: torch.Tensor) -> torch.Tensor:
        wide, down = self.block.ff.net[0].proj, self.block.ff.net[2]
        hidden = self.kernels.swiglu(wide(x_BSC.flatten(0, 1)), emit=ActivationFormat.DENSE)
        projected: torch.Tensor = down(hidden)
        return projected.view_as(x_BSC).to(torch.float32)


@contextmanager
def fused_blocks(vae: Any, kernels: BlockKernels) -> Iterator[None]:
    """Inside, every block of the decoder runs fused; afterwards it is as it was."""
    blocks = list(vae.decoder.transformer_blocks)
    for block in blocks:
        block.forward = FusedBlock.of(block, kernels)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
