"""Gluon: a warpgroup that computes 64 query rows of each item; while one multiplies, the other takes exponentials."""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from vflash_adapters.attention.hopper.softmax_loop import KEYS, ROWS, last_product, pass_by, softmax_blocks
from vflash_adapters.attention.veda.hopper_item import fields, mask_dead


@gluon.jit
def consume(PART, out, tables, scale_log2, memory, barriers, D, K_SLOTS, V_SLOTS):
    """Rows [64 * PART, 64 * PART + 64) of every item, until the producer says -1."""
    lists_ptr, rows_ptr = tables
    out_ptr, row_stride, head_stride = out
    q_s, k_s, v_s, item_s = memory
    q_full, q_empty, k_full, k_empty, v_full, v_empty, item_full, item_empty = barriers
    loop_bars = (k_full, k_empty, v_full, v_empty)
    taken = 0
    step = 0
    head, at, valid, _, n_full, quarters, n_quarters, blocks = _next_item(0, item_s, item_full, item_empty)
    while blocks >= 0:
        buffer = taken % 2
        mbarrier.wait(q_full.index(buffer), taken // 2 & 1)
        if (blocks > 0) & (valid > PART * ROWS):
            q = q_s.index(buffer * 2 + PART)
            keys = (lists_ptr + quarters, n_full, n_quarters, blocks)
            target = (out_ptr + head.to(gl.int64) * head_stride, row_stride, rows_ptr + at * KEYS, valid)
            _attend(PART, q, keys, target, step, scale_log2, (k_s, v_s), loop_bars, D, K_SLOTS, V_SLOTS)
        else:
            pass_by(blocks, step, loop_bars, K_SLOTS, V_SLOTS)
        step += blocks
        mbarrier.arrive(q_empty.index(buffer), count=1)
        taken += 1
        head, at, valid, _, n_full, quarters, n_quarters, blocks = _next_item(taken, item_s, item_full, item_empty)


@gluon.jit
def _attend(PART, q, keys, target, step, scale_log2, memory, barriers, D, K_SLOTS, V_SLOTS):
    quarters_ptr, n_full, n_quarters, blocks = keys
    made, last = softmax_blocks(
        q, (blocks, n_full, (n_full, quarters_ptr, n_quarters)), step, scale_log2, memory, barriers, mask_dead,
        D, K_SLOTS, V_SLOTS, True,
    )  # fmt: skip
    rows = _out_rows(target, PART, D)
    _store(last_product(made, last, memory, barriers, D, V_SLOTS), q, target, rows, D)


@gluon.jit
def _out_rows(target, PART, D):
    """Packed numbers of these 64 rows, asked for before the last product so that they are there after it."""
    _, _, table, valid = target
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    at = PART * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    return gl.load(table + at, mask=at < valid, other=-1).to(gl.int64)


@gluon.jit
def _store(total, q, target, rows, D):
    """Through the query's own shared memory, done with by now, so that whole rows are written."""
    out_ptr, row_stride, _, _ = target
    q.store(total.to(q.dtype))
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    offs_d = gl.arange(0, D, gl.SliceLayout(0, layout))
    gl.store(out_ptr + (rows * row_stride)[:, None] + offs_d[None, :], q.load(layout), mask=(rows >= 0)[:, None])


@gluon.jit
def _next_item(taken, item_s, item_full, item_empty):
    buffer = taken % 2
    mbarrier.wait(item_full.index(buffer), taken // 2 & 1)
    item = fields(item_s.index(buffer).load(gl.BlockedLayout([8], [32], [4], [0])))
    mbarrier.arrive(item_empty.index(buffer), count=1)
    return item
