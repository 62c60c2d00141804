"""Gluon: what the producer and the consumers of the Hopper kernel share, items of work and their key blocks."""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from vflash_adapters.attention.hopper.softmax_loop import KEYS

QUARTER = gl.constexpr(32)
PER_BLOCK = gl.constexpr(4)
CODE = gl.constexpr(64)
FIELDS = gl.constexpr(8)


@gluon.jit
def fields(item):
    """Head, row of the tile, real rows, first full tile, full tiles, first quarter, quarters, blocks; all -1: stop."""
    return (
        _field(item, 0), _field(item, 1), _field(item, 2), _field(item, 3),
        _field(item, 4), _field(item, 5), _field(item, 6), _field(item, 7),
    )  # fmt: skip


@gluon.jit
def _field(item, NUMBER: gl.constexpr):
    at = gl.arange(0, FIELDS, item.type.layout)
    return gl.sum(gl.where(at == NUMBER, item, 0), 0)


@gluon.jit
def key_rows(block, full_ptr, n_full, quarters_ptr, n_quarters, table, offs):
    """Packed row numbers of a key block, a full tile or four quarters; dead slots read row 0, which is finite."""
    if block < n_full:
        rows = gl.load(table + gl.load(full_ptr + block) * KEYS + offs)
    else:
        nth = (block - n_full) * PER_BLOCK + offs // QUARTER
        code = gl.load(quarters_ptr + nth, mask=nth < n_quarters, other=0)
        live = offs % QUARTER < code % CODE
        rows = gl.load(table + code // CODE * QUARTER + offs % QUARTER, mask=live, other=0)
    return rows


@gluon.jit
def mask_dead(scores, block, cols, keys):
    """Minus infinity where a block of quarters holds no real row."""
    n_full, quarters_ptr, n_quarters = keys
    first = (block - n_full) * PER_BLOCK
    live_rows = gl.full([KEYS], 0, gl.int32, cols.type.layout)
    for i in gl.static_range(PER_BLOCK):
        code = gl.load(quarters_ptr + first + i, mask=first + i < n_quarters, other=0)
        live_rows = gl.where(cols // QUARTER == i, code % CODE, live_rows)
    return gl.where((cols % QUARTER < live_rows)[None, :], scores, float("-inf"))
