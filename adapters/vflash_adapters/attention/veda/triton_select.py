"""Triton: each query tile's best key tiles, chosen and listed on the device without waiting for it."""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

from vflash_adapters.attention.veda.kept_lists import CODE, FIELDS, QUARTER_ROWS, QUARTERS, KeptLists
from vflash_adapters.attention.veda.tiles import TILE_ROWS
from vflash_adapters.attention.veda.tiling import Tiling


def select_tiles(
    logits_HNN: torch.Tensor, tiling: Tiling, head_shape: torch.Tensor, kept: KeptLists, kept_pairs: torch.Tensor
) -> None:
    """Fill `kept`; add the kept video pairs of each head to `kept_pairs` int64 [H]."""
    heads, tiles, _ = logits_HNN.shape
    block = triton.next_power_of_2(tiles)
    _select[(tiles, heads)](
        logits_HNN, tiling.keep, tiling.valid, tiling.sizes, head_shape, kept.lists, kept.items, kept.everything,
        kept_pairs, tiles, heads, kept.first, kept.full_room, kept.quarter_room, kept.n_global, kept.most_video,
        TILE=TILE_ROWS, QUARTER=QUARTER_ROWS, PER_TILE=QUARTERS, CODE=CODE, FIELDS=FIELDS, BLOCK=block,
        num_warps=max(1, block // 512), enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit
def _select(
    logits_ptr, keep_ptr, valid_ptr, sizes_ptr, head_shape_ptr, lists_ptr, items_ptr, everything_ptr, pairs_ptr,
    tiles, heads, first, full_room, quarter_room, n_global, most_video,
    TILE: tl.constexpr, QUARTER: tl.constexpr, PER_TILE: tl.constexpr, CODE: tl.constexpr, FIELDS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    shape = tl.load(head_shape_ptr + head)
    n_ref, n_video = tl.load(sizes_ptr + shape * 3), tl.load(sizes_ptr + shape * 3 + 1)
    n_tiles = tl.load(sizes_ptr + shape * 3 + 2)
    item = items_ptr + (heads * n_global + head * most_video + tile) * FIELDS
    if tile >= n_video:
        if tile < most_video:  # another block's heads may have had a tile here
            tl.store(item + FIELDS - 1, 0)
        if tile < n_tiles:
            every = everything_ptr + shape * 4
            _write_item(
                items_ptr + (head * n_global + tile - n_video) * FIELDS, head, shape * tiles + tile, valid_ptr,
                tl.load(every), tl.load(every + 1), tl.load(every + 2), tl.load(every + 3), PER_TILE,
            )  # fmt: skip
        return
    col = tl.arange(0, BLOCK)
    keys = _ranked(tl.load(logits_ptr + (head.to(tl.int64) * tiles + tile) * tiles + col, mask=col < n_video, other=0))
    own = col == tile
    budget = keep_ptr + (shape * tiles + tile) * 2
    in_target = tile >= n_ref
    video = own | _best(keys, (col >= n_ref) & (col < n_video) & ~own, tl.load(budget + 1) - in_target.to(tl.int32))
    if n_ref > 0:
        video = video | _best(keys, (col < n_ref) & ~own, tl.load(budget) - (~in_target).to(tl.int32))
    tl.atomic_add(pairs_ptr + head, tl.sum(video.to(tl.int64)), sem="relaxed")
    listed = video | ((col >= n_video) & (col < n_tiles))

    valid = tl.load(valid_ptr + shape * tiles + col, mask=col < n_tiles, other=0)
    full = (listed & (valid == TILE)).to(tl.int32)
    start = first + (head * most_video + tile) * (full_room + quarter_room)
    tl.store(lists_ptr + start + tl.cumsum(full) - full, col, mask=full == 1)
    quarters = tl.where(listed & (valid < TILE), (valid + QUARTER - 1) // QUARTER, 0)
    at = lists_ptr + start + full_room + tl.cumsum(quarters) - quarters
    for i in tl.static_range(PER_TILE):
        rows = tl.minimum(valid - i * QUARTER, QUARTER)
        tl.store(at + i, (col * PER_TILE + i) * CODE + rows, mask=i < quarters)
    _write_item(
        item, head, shape * tiles + tile, valid_ptr, start, tl.sum(full), start + full_room, tl.sum(quarters), PER_TILE
    )


@triton.jit
def _write_item(item, head, at, valid_ptr, full, n_full, quarters, n_quarters, PER_TILE: tl.constexpr):
    tl.store(item, head)
    tl.store(item + 1, at)
    tl.store(item + 2, tl.load(valid_ptr + at))
    tl.store(item + 3, full)
    tl.store(item + 4, n_full)
    tl.store(item + 5, quarters)
    tl.store(item + 6, n_quarters)
    tl.store(item + 7, n_full + (n_quarters + PER_TILE - 1) // PER_TILE)


@triton.jit
def _ranked(logits):
    """float32 -> int32 in the same order; both zeros become one."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _best(keys, among, count):
    """The `count` largest of `among`; of equal ones the first.

    Bisects for the threshold, and stops early once it parts off exactly `count`.
    """
    low = tl.min(tl.where(among, keys, 0x7FFFFFFF)).to(tl.int64)
    high = tl.max(tl.where(among, keys, -0x7FFFFFFF)).to(tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        found = tl.sum((among & (keys >= middle.to(tl.int32))).to(tl.int32))
        low = tl.where(found >= count, middle, low)
        high = tl.where(found > count, high, tl.where(found == count, middle, middle - 1))
    above = among & (keys > low.to(tl.int32))
    equal = among & (keys == low.to(tl.int32))
    room = count - tl.sum(above.to(tl.int32))
    return above | (equal & (tl.cumsum(equal.to(tl.int32)) <= room))
