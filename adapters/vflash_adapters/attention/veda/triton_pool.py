"""Triton: mean, max and min of every tile's rows, read where they lie."""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

from vflash_adapters.attention.veda.tiles import TILE_ROWS
from vflash_adapters.attention.veda.tiling import Tiling

CHUNK_ROWS = 16


def pool_tiles(q_SHD: torch.Tensor, k_SHD: torch.Tensor, tiling: Tiling, head_shape: torch.Tensor) -> torch.Tensor:
    """Features of q, then of k, float32 [2, H, N, 3D]; zero where a head's shape has no such tile."""
    _, heads, head_dim = q_SHD.shape
    features = torch.empty(2, heads, tiling.tiles, 3 * head_dim, dtype=torch.float32, device=q_SHD.device)
    _pool[(tiling.tiles, heads, 2)](
        q_SHD, k_SHD, features, tiling.rows, tiling.valid, head_shape,
        *q_SHD.stride()[:2], *k_SHD.stride()[:2], tiling.tiles, heads,
        D=head_dim, ROWS=TILE_ROWS, CHUNK=CHUNK_ROWS, num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    return features


@triton.jit
def _pool(
    q_ptr, k_ptr, features_ptr, rows_ptr, valid_ptr, head_shape_ptr,
    q_row_stride, q_head_stride, k_row_stride, k_head_stride, tiles, heads,
    D: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    # One warp a tile: sums and extremes stay in a few registers, so that many tiles are in flight at once.
    tile, head, side = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = tl.load(head_shape_ptr + head) * tiles + tile
    valid = tl.load(valid_ptr + at)
    offs_d = tl.arange(0, D)
    x_ptr = (q_ptr if side == 0 else k_ptr) + head.to(tl.int64) * (q_head_stride if side == 0 else k_head_stride)
    row_stride = q_row_stride if side == 0 else k_row_stride
    total = tl.zeros([D], tl.float32)
    most = tl.full([D], float("-inf"), tl.float32)
    least = tl.full([D], float("inf"), tl.float32)
    for start in range(0, valid, CHUNK):
        offs = start + tl.arange(0, CHUNK)
        # Beyond the real rows the last one is read again: extremes do not change, and the sum leaves it out.
        # A row number times a stride passes 2^31 near 100,000 fused rows: widen before multiplying.
        row = tl.load(rows_ptr + at * ROWS + tl.minimum(offs, valid - 1)).to(tl.int64)
        x = tl.load(x_ptr + row[:, None] * row_stride + offs_d[None, :]).to(tl.float32)
        total += tl.sum(tl.where((offs < valid)[:, None], x, 0.0), 0)
        most = tl.maximum(most, tl.max(x, 0))
        least = tl.minimum(least, tl.min(x, 0))
    out = features_ptr + ((side * heads + head).to(tl.int64) * tiles + tile) * 3 * D + offs_d
    exists = valid > 0
    tl.store(out, tl.where(exists, total / tl.maximum(valid, 1), 0.0))
    tl.store(out + D, tl.where(exists, most, 0.0))
    tl.store(out + 2 * D, tl.where(exists, least, 0.0))
