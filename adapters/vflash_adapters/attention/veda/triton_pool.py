"""Triton: mean, max and min of every video tile's rows, read where they lie."""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

from vflash_adapters.attention.veda.tiles import TILE_ROWS
from vflash_adapters.attention.veda.tiling import Tiling


def pool_tiles(q_SHD: torch.Tensor, k_SHD: torch.Tensor, tiling: Tiling, head_shape: torch.Tensor) -> torch.Tensor:
    """Features of q, then of k, float32 [2, H, N, 3D]; zero where a head's shape has no such tile."""
    _, heads, head_dim = q_SHD.shape
    features = torch.empty(2, heads, tiling.tiles, 3 * head_dim, dtype=torch.float32, device=q_SHD.device)
    _pool[(tiling.tiles, heads, 2)](
        q_SHD, k_SHD, features, tiling.rows, tiling.valid, tiling.sizes, head_shape,
        *q_SHD.stride()[:2], *k_SHD.stride()[:2], tiling.tiles, heads,
        D=head_dim, ROWS=TILE_ROWS, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    return features


@triton.jit
def _pool(  # a kernel's arguments are positional
    q_ptr, k_ptr, features_ptr, rows_ptr, valid_ptr, sizes_ptr, head_shape_ptr,
    q_row_stride, q_head_stride, k_row_stride, k_head_stride, tiles, heads,
    D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    tile, head, side = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shape = tl.load(head_shape_ptr + head)
    offs_d = tl.arange(0, D)
    out = features_ptr + ((side * heads + head).to(tl.int64) * tiles + tile) * 3 * D + offs_d
    if tile >= tl.load(sizes_ptr + shape * 3 + 1):
        for part in tl.static_range(3):
            tl.store(out + part * D, tl.zeros([D], tl.float32))
        return
    x_ptr = (q_ptr if side == 0 else k_ptr) + head.to(tl.int64) * (q_head_stride if side == 0 else k_head_stride)
    row_stride = q_row_stride if side == 0 else k_row_stride
    valid = tl.load(valid_ptr + shape * tiles + tile)
    offs = tl.arange(0, ROWS)
    # A row number times a stride passes 2^31 near 100,000 fused rows: widen before multiplying.
    row = tl.load(rows_ptr + (shape * tiles + tile) * ROWS + offs).to(tl.int64)
    real = (offs < valid)[:, None]
    x = tl.load(x_ptr + row[:, None] * row_stride + offs_d[None, :], mask=real, other=0.0).to(tl.float32)
    tl.store(out, tl.sum(x, 0) / valid)
    tl.store(out + D, tl.max(tl.where(real, x, float("-inf")), 0))
    tl.store(out + 2 * D, tl.min(tl.where(real, x, float("inf")), 0))
