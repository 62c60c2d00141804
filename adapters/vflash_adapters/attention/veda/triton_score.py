"""Triton: block logits, the same numbers as `scores.block_logits`, in two launches for both sides and all heads.

float32 accuracy on tensor cores: each factor is split into two TF32 parts and three products are summed.
"""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

from vflash_adapters.attention.veda.predictor import Projections

BLOCK = 64


def block_logits(features_2HNF: torch.Tensor, projections: Projections | None) -> torch.Tensor:
    """Features float32 [2, H, N, 3D] of q, then k -> logits float32 [H, N, N]."""
    _, heads, tiles, width = features_2HNF.shape
    head_dim = width // 3
    blocks = triton.cdiv(tiles, BLOCK)
    embedded, row_stride = features_2HNF, width
    if projections is not None:
        embedded = features_2HNF.new_empty(2, heads, tiles, head_dim)
        row_stride = head_dim
        _embed[(blocks, heads, 2)](
            features_2HNF, projections.q, projections.k, embedded, tiles, heads,
            D=head_dim, BLOCK=BLOCK, WIDTH=min(32, head_dim), num_warps=4, num_stages=2, enable_fp_fusion=True,
        )  # fmt: skip
    logits = features_2HNF.new_empty(heads, tiles, tiles)
    _multiply[(blocks, blocks, heads)](
        embedded,
        logits,
        tiles,
        heads,
        row_stride,
        D=head_dim,
        BLOCK=BLOCK,
        num_warps=4,
        num_stages=1,
        enable_fp_fusion=True,
    )
    return logits


@triton.jit
def _embed(
    features_ptr, q_ptr, k_ptr, out_ptr, tiles, heads, D: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    block, head, side = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    offs_d = tl.arange(0, D)
    tile = block * BLOCK + tl.arange(0, BLOCK)
    real = (tile < tiles)[:, None]
    row = (side * heads + head).to(tl.int64) * tiles + tile[:, None]
    weight_ptr = (q_ptr if side == 0 else k_ptr) + head.to(tl.int64) * 3 * D * D
    total = tl.load(features_ptr + row * 3 * D + offs_d[None, :], mask=real, other=0.0)
    for start in range(0, 3 * D, WIDTH):
        offs = start + tl.arange(0, WIDTH)
        x = tl.load(features_ptr + row * 3 * D + offs[None, :], mask=real, other=0.0)
        weight = tl.load(weight_ptr + offs[:, None] * D + offs_d[None, :]).to(tl.float32)
        total = tl.dot(x, weight, total, input_precision="tf32x3")
    tl.store(out_ptr + row * D + offs_d[None, :], total, mask=real)


@triton.jit
def _multiply(embedded_ptr, logits_ptr, tiles, heads, row_stride, D: tl.constexpr, BLOCK: tl.constexpr):
    head = tl.program_id(2).to(tl.int64)
    offs_d = tl.arange(0, D)
    query = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    q_at = (head * tiles + query)[:, None] * row_stride + offs_d[None, :]
    k_at = ((heads + head) * tiles + key)[:, None] * row_stride + offs_d[None, :]
    q = tl.load(embedded_ptr + q_at, mask=(query < tiles)[:, None], other=0.0)
    k = tl.load(embedded_ptr + k_at, mask=(key < tiles)[:, None], other=0.0)
    logits = tl.dot(q, k.T, input_precision="tf32x3")
    at = (head * tiles + query)[:, None] * tiles + key[None, :]
    tl.store(logits_ptr + at, logits, mask=(query < tiles)[:, None] & (key < tiles)[None, :])
