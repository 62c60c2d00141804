"""Gluon: a warpgroup that computes 64 query rows of each item; while one multiplies, the other takes exponentials."""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from vflash_adapters.attention.veda.hopper_item import HALF, KEYS, fields, mask_dead


@gluon.jit
def consume(PART, out, tables, scale_log2, memory, barriers, D, K_SLOTS, V_SLOTS, TURNS):
    """Rows [64 * PART, 64 * PART + 64) of every item, until the producer says -1."""
    lists_ptr, rows_ptr = tables
    out_ptr, row_stride, head_stride = out
    q_s, _, _, item_s = memory
    q_full, q_empty, _, _, _, _, item_full, item_empty, _ = barriers
    taken = 0
    step = 0
    turn = 0
    head, at, valid, _, n_full, quarters, n_quarters, blocks = _next_item(0, item_s, item_full, item_empty)
    while blocks >= 0:
        buffer = taken % 2
        mbarrier.wait(q_full.index(buffer), taken // 2 & 1)
        if (blocks > 0) & (valid > PART * HALF):
            q = q_s.index(buffer * 2 + PART)
            keys = (lists_ptr + quarters, n_full, n_quarters, blocks)
            target = (out_ptr + head.to(gl.int64) * head_stride, row_stride, rows_ptr + at * KEYS, valid)
            _attend(PART, q, keys, target, step, turn, scale_log2, memory, barriers, D, K_SLOTS, V_SLOTS, TURNS)
        else:
            _pass_by(PART, blocks, step, turn, barriers, K_SLOTS, V_SLOTS, TURNS)
        step += blocks
        turn += gl.maximum(blocks - 1, 0)
        mbarrier.arrive(q_empty.index(buffer), count=1)
        taken += 1
        head, at, valid, _, n_full, quarters, n_quarters, blocks = _next_item(taken, item_s, item_full, item_empty)


@gluon.jit
def _attend(PART, q, keys, target, step, turn, scale_log2, memory, barriers, D, K_SLOTS, V_SLOTS, TURNS):
    """The product with the values of one block runs while the next block's softmax is computed."""
    _, k_s, v_s, _ = memory
    _, _, k_full, k_empty, v_full, v_empty, _, _, turns = barriers
    quarters_ptr, n_full, n_quarters, blocks = keys
    score_l: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    out_l: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    weights_l: gl.constexpr = gl.DotOperandLayout(0, out_l, 2)
    out_row: gl.constexpr = gl.SliceLayout(1, out_l)
    cols = gl.arange(0, KEYS, gl.SliceLayout(0, score_l))
    nothing = gl.zeros([HALF, KEYS], gl.float32, score_l)
    total = gl.zeros([HALF, D], gl.float32, out_l)

    p, top, weight = _first_weights(q, keys, step, scale_log2, nothing, cols, memory, barriers, K_SLOTS)
    weights = gl.convert_layout(p.to(v_s.dtype), weights_l)
    _wait(k_full, step + 1, K_SLOTS, blocks > 1)
    for block in range(1, blocks):
        if TURNS:
            _take_turn(PART, turn + block - 1, turns)
        k_slot = (step + 1) % K_SLOTS
        scores_later = warpgroup_mma(q, k_s.index(k_slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
        _wait(v_full, step, V_SLOTS, True)
        total_later = warpgroup_mma(weights, v_s.index(step % V_SLOTS), total, is_async=True)
        if TURNS:
            mbarrier.arrive(turns.index(1 - PART), count=1)
        scores = warpgroup_mma_wait(1, deps=[scores_later])
        mbarrier.arrive(k_empty.index(k_slot), count=1)
        if block >= n_full:
            scores = mask_dead(scores, block, n_full, quarters_ptr, n_quarters, cols)
        new_top = gl.maximum(top, gl.max(scores, 1) * scale_log2)
        p = gl.exp2(scores * scale_log2 - new_top[:, None])
        fade = gl.exp2(top - new_top)
        weight = weight * fade + gl.sum(p, 1)
        top = new_top
        # The assembler moves the wait for the values' product up to the start of its basic block, which would undo the
        # overlap. Waiting here for the next keys, which are needed anyway, ends the block after the exponentials.
        _wait(k_full, step + 2, K_SLOTS, block + 1 < blocks)
        total, weights = warpgroup_mma_wait(0, deps=[total_later, weights])
        mbarrier.arrive(v_empty.index(step % V_SLOTS), count=1)
        weights = gl.convert_layout(p.to(v_s.dtype), weights_l)
        total = total * gl.convert_layout(fade, out_row)[:, None]
        step += 1
    rows = _out_rows(target, PART, D)
    _wait(v_full, step, V_SLOTS, True)
    total_later = warpgroup_mma(weights, v_s.index(step % V_SLOTS), total, is_async=True)
    total, weights = warpgroup_mma_wait(0, deps=[total_later, weights])
    mbarrier.arrive(v_empty.index(step % V_SLOTS), count=1)
    _store(total / gl.convert_layout(weight, out_row)[:, None], q, target, rows, PART, D)


@gluon.jit
def _first_weights(q, keys, step, scale_log2, nothing, cols, memory, barriers, K_SLOTS):
    _, k_s, _, _ = memory
    _, _, k_full, k_empty, _, _, _, _, _ = barriers
    quarters_ptr, n_full, n_quarters, _ = keys
    _wait(k_full, step, K_SLOTS, True)
    k_slot = step % K_SLOTS
    scores = warpgroup_mma(q, k_s.index(k_slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(k_empty.index(k_slot), count=1)
    if n_full == 0:
        scores = mask_dead(scores, 0, n_full, quarters_ptr, n_quarters, cols)
    top = gl.max(scores, 1) * scale_log2
    p = gl.exp2(scores * scale_log2 - top[:, None])
    return p, top, gl.sum(p, 1)


@gluon.jit
def _out_rows(target, PART, D):
    """Packed numbers of these 64 rows, asked for before the last product so that they are there after it."""
    _, _, table, valid = target
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    at = PART * HALF + gl.arange(0, HALF, gl.SliceLayout(1, layout))
    return gl.load(table + at, mask=at < valid, other=-1).to(gl.int64)


@gluon.jit
def _store(total, q, target, rows, PART, D):
    """Through the query's own shared memory, done with by now, so that whole rows are written."""
    out_ptr, row_stride, _, _ = target
    q.store(total.to(q.dtype))
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    offs_d = gl.arange(0, D, gl.SliceLayout(0, layout))
    gl.store(out_ptr + (rows * row_stride)[:, None] + offs_d[None, :], q.load(layout), mask=(rows >= 0)[:, None])


@gluon.jit
def _pass_by(PART, blocks, step, turn, barriers, K_SLOTS, V_SLOTS, TURNS):
    """These 64 rows are all padding: only let the blocks go, and the other warpgroup have every turn."""
    _, _, k_full, k_empty, v_full, v_empty, _, _, turns = barriers
    for block in range(blocks):
        if TURNS:  # noqa: SIM102  # decided when compiled, the other when run
            if block > 0:
                _take_turn(PART, turn + block - 1, turns)
                mbarrier.arrive(turns.index(1 - PART), count=1)
        _wait(k_full, step, K_SLOTS, True)
        mbarrier.arrive(k_empty.index(step % K_SLOTS), count=1)
        _wait(v_full, step, V_SLOTS, True)
        mbarrier.arrive(v_empty.index(step % V_SLOTS), count=1)
        step += 1


@gluon.jit
def _take_turn(PART, turn, turns):
    """The two warpgroups hand their products to the tensor cores in turn: one's exponentials hide the other's."""
    mbarrier.wait(turns.index(PART), (turn & 1) ^ (1 - PART))


@gluon.jit
def _wait(full, step, SLOTS, wanted):
    mbarrier.wait(full.index(step % SLOTS), step // SLOTS & 1, pred=wanted)


@gluon.jit
def _next_item(taken, item_s, item_full, item_empty):
    buffer = taken % 2
    mbarrier.wait(item_full.index(buffer), taken // 2 & 1)
    item = fields(item_s.index(buffer).load(gl.BlockedLayout([8], [32], [4], [0])))
    mbarrier.arrive(item_empty.index(buffer), count=1)
    return item
