"""Triton: softmax attention over kept tiles only, reading q, k, v and writing the output where the rows lie."""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from attrs import frozen

from vflash_adapters.attention.veda.kept_lists import CODE, FIELDS, QUARTER_ROWS, KeptLists
from vflash_adapters.attention.veda.tiles import TILE_ROWS
from vflash_adapters.attention.veda.tiling import Tiling


@frozen(kw_only=True)
class AttendConfig:
    """Keys folded in at a time, warps, and pipeline depth."""

    key_rows: int = 128
    warps: int = 8
    stages: int = 4


def attend_kept(
    q_SHD: torch.Tensor,
    k_SHD: torch.Tensor,
    v_SHD: torch.Tensor,
    kept: KeptLists,
    *,
    tiling: Tiling,
    head_shape: torch.Tensor,
    config: AttendConfig,
) -> torch.Tensor:
    """Written over q, which is returned: every row once, since every row lies in exactly one tile."""
    head_dim = q_SHD.shape[-1]
    _attend[(len(kept.items),)](
        q_SHD, k_SHD, v_SHD, kept.lists, kept.items, tiling.rows,
        *q_SHD.stride()[:2], *k_SHD.stride()[:2], *v_SHD.stride()[:2], tiling.tiles,
        head_dim**-0.5 * math.log2(math.e),
        D=head_dim, ROWS=TILE_ROWS, KEYS=config.key_rows, QUARTER=QUARTER_ROWS, CODE=CODE, FIELDS=FIELDS,
        STAGES=config.stages, num_warps=config.warps, num_stages=config.stages, enable_fp_fusion=True,
    )  # fmt: skip
    return q_SHD


@triton.jit
def _attend(
    q_ptr, k_ptr, v_ptr, lists_ptr, items_ptr, rows_ptr,
    q_row_stride, q_head_stride, k_row_stride, k_head_stride, v_row_stride, v_head_stride, tiles, scale_log2,
    D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, QUARTER: tl.constexpr, CODE: tl.constexpr,
    FIELDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    item = items_ptr + tl.program_id(0) * FIELDS
    if tl.load(item + 7) == 0:
        return
    # A row number times a stride passes 2^31 near 100,000 fused rows: widen before multiplying.
    head = tl.load(item).to(tl.int64)
    tile = tl.load(item + 1)
    table = rows_ptr + tile // tiles * tiles * ROWS
    offs_d = tl.arange(0, D)
    offs_m = tl.arange(0, ROWS)
    real = (offs_m < tl.load(item + 2))[:, None]
    row = tl.load(rows_ptr + tile * ROWS + offs_m).to(tl.int64)[:, None]
    # Every row of a head is read as a query by one item only, which then writes its result there.
    q_at = q_ptr + row * q_row_stride + head * q_head_stride + offs_d[None, :]
    q = tl.load(q_at, mask=real, other=0.0)
    k_head = k_ptr + head * k_head_stride + offs_d[None, :]
    v_head = v_ptr + head * v_head_stride + offs_d[None, :]

    full = lists_ptr + tl.load(item + 3)
    quarters = lists_ptr + tl.load(item + 5)
    n_quarters = tl.load(item + 6)
    offs_n = tl.arange(0, KEYS)
    total = tl.zeros([ROWS, D], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    PER_TILE: tl.constexpr = ROWS // KEYS
    for i in tl.range(0, tl.load(item + 4) * PER_TILE, num_stages=STAGES):
        first = tl.load(full + i // PER_TILE) * ROWS + (i % PER_TILE) * KEYS
        key = tl.load(table + first + offs_n).to(tl.int64)[:, None]
        k = tl.load(k_head + key * k_row_stride)
        v = tl.load(v_head + key * v_row_stride)
        total, top, weight = _fold(q, k, v, total, top, weight, scale_log2, offs_n >= 0, MASKED=False)
    PER_STEP: tl.constexpr = KEYS // QUARTER
    for i in tl.range(0, tl.cdiv(n_quarters, PER_STEP), num_stages=STAGES):
        nth = i * PER_STEP + offs_n // QUARTER
        code = tl.load(quarters + nth, mask=nth < n_quarters, other=0)
        live = offs_n % QUARTER < code % CODE
        # A dead slot reads row 0: its score is masked, and its value must be finite because 0 * NaN is NaN.
        key = tl.load(table + code // CODE * QUARTER + offs_n % QUARTER, mask=live, other=0).to(tl.int64)[:, None]
        k = tl.load(k_head + key * k_row_stride)
        v = tl.load(v_head + key * v_row_stride)
        total, top, weight = _fold(q, k, v, total, top, weight, scale_log2, live, MASKED=True)

    tl.store(q_at, (total / weight[:, None]).to(q.dtype), mask=real)


@triton.jit
def _fold(q, k, v, total, top, weight, scale_log2, live, MASKED: tl.constexpr):
    """One step of the online softmax, in base 2, over the keys in `k`."""
    scores = tl.dot(q, k.T)
    if MASKED:
        scores = tl.where(live[None, :], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * scale_log2)
    p = tl.math.exp2(scores * scale_log2 - new_top[:, None])
    fade = tl.math.exp2(top - new_top)
    total = tl.dot(p.to(v.dtype), v, total * fade[:, None])
    return total, new_top, weight * fade + tl.sum(p, 1)
