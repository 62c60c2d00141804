"""Triton: block logits with float32 accuracy on tensor cores, in two launches for both sides and all heads."""

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
    D = width // 3
    blocks = triton.cdiv(tiles, BLOCK)
    embedded, row_stride = features_2HNF, width
    if projections is not None:
        embedded, row_stride = features_2HNF.new_empty(2, heads, tiles, D), D
        _embed[(blocks, heads, 2)](
            features_2HNF, projections.q, projections.k, embedded, tiles, heads,
            D=D, BLOCK=BLOCK, WIDTH=min(64, D), num_warps=4, num_stages=2, enable_fp_fusion=True,
        )  # fmt: skip
    logits = features_2HNF.new_empty(heads, tiles, tiles)
    _multiply[(blocks, blocks, heads)](
        embedded, logits, tiles, heads, row_stride,
        D=D, BLOCK=BLOCK, num_warps=4, num_stages=1, enable_fp_fusion=True,
    )  # fmt: skip
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
    weights = (q_ptr if side == 0 else k_ptr) + head.to(tl.int64) * 3 * D * D
    total = tl.load(features_ptr + row * 3 * D + offs_d[None, :], mask=real, other=0.0)
    for start in range(0, 3 * D, WIDTH):
        offs = start + tl.arange(0, WIDTH)
        x = tl.load(features_ptr + row * 3 * D + offs[None, :], mask=real, other=0.0)
        weight = tl.load(weights + offs[:, None] * D + offs_d[None, :])
        # Three parts of 8 bits each make up a float32's 24; their products with the weights are exact in float32.
        high = x.to(weight.dtype)
        rest = x - high.to(tl.float32)
        middle = rest.to(weight.dtype)
        low = (rest - middle.to(tl.float32)).to(weight.dtype)
        total = tl.dot(high, weight, tl.dot(middle, weight, tl.dot(low, weight, total)))
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
