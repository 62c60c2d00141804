"""Gluon: what the producer and the consumers of the Hopper kernel have in common, a query tile and its key blocks."""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

KEYS = gl.constexpr(128)
QUARTER = gl.constexpr(32)
PER_BLOCK = gl.constexpr(4)
CODE = gl.constexpr(64)
HALF = gl.constexpr(64)


@gluon.jit
def decode(item, tables, sizes):
    """A work item as (head, row of the tile in `rows`, real rows, full tiles, quarters, key blocks).

    Query tiles that attend to everything take about ten times as long as the others, so they have the lowest numbers.
    The others follow head by head, so that the keys in flight at one time fit the cache. Numbers beyond a head's tiles
    have no key blocks.
    """
    valid_ptr, sizes_ptr, head_shape_ptr, entries_ptr = tables
    heads, tiles, n_global, most_video = sizes
    light = item - heads * n_global
    head = gl.where(light < 0, item // n_global, light // most_video)
    shape = gl.load(head_shape_ptr + head)
    n_video = gl.load(sizes_ptr + shape * 3 + 1)
    tile = gl.where(light < 0, n_video + item % n_global, light % most_video)
    exists = (light < 0) | (tile < n_video)
    tile = gl.where(exists, tile, 0)
    valid = gl.load(valid_ptr + shape * tiles + tile)
    entry = entries_ptr + (head * tiles + tile) * 4
    n_full, n_quarters = gl.load(entry + 1), gl.load(entry + 3)
    blocks = gl.where(exists, n_full + (n_quarters + PER_BLOCK - 1) // PER_BLOCK, 0)
    return head, shape, tile, valid, gl.load(entry), n_full, gl.load(entry + 2), n_quarters, blocks


@gluon.jit
def key_rows(block, full_ptr, n_full, quarters_ptr, n_quarters, table, offs):
    """Packed row numbers of a key block, a full tile or four quarters; dead slots read row 0, which is finite."""
    if block < n_full:
        at = gl.load(full_ptr + block) * KEYS + offs
        live = offs >= 0
    else:
        nth = (block - n_full) * PER_BLOCK + offs // QUARTER
        code = gl.load(quarters_ptr + nth, mask=nth < n_quarters, other=0)
        at = code // CODE * QUARTER + offs % QUARTER
        live = offs % QUARTER < code % CODE
    return gl.load(table + at, mask=live, other=0)


@gluon.jit
def mask_dead(scores, block, n_full, quarters_ptr, n_quarters, cols):
    """Minus infinity where a block of quarters holds no real row."""
    first = (block - n_full) * PER_BLOCK
    live_rows = gl.full([KEYS], 0, gl.int32, cols.type.layout)
    for i in gl.static_range(PER_BLOCK):
        code = gl.load(quarters_ptr + first + i, mask=first + i < n_quarters, other=0)
        live_rows = gl.where(cols // QUARTER == i, code % CODE, live_rows)
    return gl.where((cols % QUARTER < live_rows)[None, :], scores, float("-inf"))
