"""Gluon: a warpgroup that computes 64 query rows of each item; while one multiplies, the other takes exponentials."""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from vflash_adapters.attention.veda.hopper_item import HALF, KEYS, decode, mask_dead


@gluon.jit
def consume(PART, out_ptr, lists_ptr, rows_ptr, scale_log2, tables, sizes, memory, barriers, D, SLOTS, FENCE):
    """Rows [64 * PART, 64 * PART + 64) of every item, until the producer says -1."""
    heads, tiles, _, _ = sizes
    q_s, k_s, v_s, item_s = memory
    q_full, q_empty, k_full, k_empty, v_full, v_empty, item_full, item_empty = barriers
    taken = 0
    step = 0
    item = _next_item(0, item_s, item_full, item_empty)
    while item >= 0:
        buffer = taken % 2
        head, shape, tile, valid, _, n_full, quarters, n_quarters, blocks = decode(item, tables, sizes)
        mbarrier.wait(q_full.index(buffer), taken // 2 & 1)
        if (blocks > 0) & (valid > PART * HALF):
            q = q_s.index(buffer * 2 + PART)
            keys = (lists_ptr + quarters, n_full, n_quarters, blocks)
            out = _attend(q, k_s, v_s, k_full, k_empty, v_full, v_empty, keys, step, scale_log2, D, SLOTS, FENCE)
            _store(out, q, out_ptr, rows_ptr + (shape * tiles + tile) * KEYS, heads * D, head * D, valid, PART, D)
        else:
            _pass_by(blocks, step, k_full, k_empty, v_full, v_empty, SLOTS)
        step += blocks
        mbarrier.arrive(q_empty.index(buffer), count=1)
        taken += 1
        item = _next_item(taken, item_s, item_full, item_empty)


@gluon.jit
def _attend(q, k_s, v_s, k_full, k_empty, v_full, v_empty, keys, step, scale_log2, D, SLOTS, FENCE):
    """[64, D] float32. The product with the values of one block runs while the next block's softmax is computed."""
    quarters_ptr, n_full, n_quarters, blocks = keys
    score_l: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    out_l: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    weights_l: gl.constexpr = gl.DotOperandLayout(0, out_l, 2)
    out_row: gl.constexpr = gl.SliceLayout(1, out_l)
    cols = gl.arange(0, KEYS, gl.SliceLayout(0, score_l))
    nothing = gl.zeros([HALF, KEYS], gl.float32, score_l)
    total = gl.zeros([HALF, D], gl.float32, out_l)

    p, top, weight = _first_weights(q, k_s, k_full, k_empty, keys, step, scale_log2, nothing, cols, SLOTS, FENCE)
    weights = gl.convert_layout(p.to(v_s.dtype), weights_l)
    mbarrier.wait(k_full.index((step + 1) % SLOTS), (step + 1) // SLOTS & 1, pred=blocks > 1)
    for block in range(1, blocks):
        v_slot = step % SLOTS
        v_phase = step // SLOTS & 1
        step += 1
        slot = step % SLOTS
        if FENCE:
            fence_async_shared()
        scores_later = warpgroup_mma(q, k_s.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(v_slot), v_phase)
        if FENCE:
            fence_async_shared()
        total_later = warpgroup_mma(weights, v_s.index(v_slot), total, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[scores_later])
        mbarrier.arrive(k_empty.index(slot), count=1)
        if block >= n_full:
            scores = mask_dead(scores, block, n_full, quarters_ptr, n_quarters, cols)
        new_top = gl.maximum(top, gl.max(scores, 1) * scale_log2)
        p = gl.exp2(scores * scale_log2 - new_top[:, None])
        fade = gl.exp2(top - new_top)
        weight = weight * fade + gl.sum(p, 1)
        top = new_top
        # The assembler moves the wait for the values' product up to the start of its basic block, which would undo the
        # overlap. Waiting here for the next keys, which are needed anyway, ends the block after the exponentials.
        mbarrier.wait(k_full.index((step + 1) % SLOTS), (step + 1) // SLOTS & 1, pred=block + 1 < blocks)
        total, weights = warpgroup_mma_wait(0, deps=[total_later, weights])
        mbarrier.arrive(v_empty.index(v_slot), count=1)
        weights = gl.convert_layout(p.to(v_s.dtype), weights_l)
        total = total * gl.convert_layout(fade, out_row)[:, None]
    slot = step % SLOTS
    mbarrier.wait(v_full.index(slot), step // SLOTS & 1)
    if FENCE:
        fence_async_shared()
    total_later = warpgroup_mma(weights, v_s.index(slot), total, is_async=True)
    total, weights = warpgroup_mma_wait(0, deps=[total_later, weights])
    mbarrier.arrive(v_empty.index(slot), count=1)
    return total / gl.convert_layout(weight, out_row)[:, None]


@gluon.jit
def _first_weights(q, k_s, k_full, k_empty, keys, step, scale_log2, nothing, cols, SLOTS, FENCE):
    quarters_ptr, n_full, n_quarters, _ = keys
    slot = step % SLOTS
    mbarrier.wait(k_full.index(slot), step // SLOTS & 1)
    if FENCE:
        fence_async_shared()
    scores = warpgroup_mma(q, k_s.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(k_empty.index(slot), count=1)
    if n_full == 0:
        scores = mask_dead(scores, 0, n_full, quarters_ptr, n_quarters, cols)
    top = gl.max(scores, 1) * scale_log2
    p = gl.exp2(scores * scale_log2 - top[:, None])
    return p, top, gl.sum(p, 1)


@gluon.jit
def _store(total, q, out_ptr, table, row_stride, offset, valid, PART, D):
    """Through the query's own shared memory, done with by now, so that whole rows are written."""
    q.store(total.to(q.dtype))
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    at = PART * HALF + gl.arange(0, HALF, gl.SliceLayout(1, layout))
    real = at < valid
    rows = gl.load(table + at, mask=real, other=0).to(gl.int64)
    offs_d = gl.arange(0, D, gl.SliceLayout(0, layout))
    gl.store(out_ptr + (rows * row_stride + offset)[:, None] + offs_d[None, :], q.load(layout), mask=real[:, None])


@gluon.jit
def _pass_by(blocks, step, k_full, k_empty, v_full, v_empty, SLOTS):
    """These 64 rows are all padding: only let the blocks go."""
    for block in range(blocks):
        slot = (step + block) % SLOTS
        phase = (step + block) // SLOTS & 1
        mbarrier.wait(k_full.index(slot), phase)
        mbarrier.arrive(k_empty.index(slot), count=1)
        mbarrier.wait(v_full.index(slot), phase)
        mbarrier.arrive(v_empty.index(slot), count=1)


@gluon.jit
def _next_item(taken, item_s, item_full, item_empty):
    buffer = taken % 2
    mbarrier.wait(item_full.index(buffer), taken // 2 & 1)
    item = gl.max(item_s.index(buffer).load(gl.BlockedLayout([1], [32], [4], [0])), 0)
    mbarrier.arrive(item_empty.index(buffer), count=1)
    return item
