"""Gluon: one warpgroup's way through the key blocks of 64 query rows, and the barriers that it shares with the copies.

While one block's product with the values runs, the next block's exponentials are taken.
"""

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

KEYS = gl.constexpr(128)
ROWS = gl.constexpr(64)


@gluon.jit
def softmax_blocks(
    q, keys, step, scale_log2, memory, barriers, mask: gl.constexpr, D, K_SLOTS, V_SLOTS, MASK_LATER: gl.constexpr
):  # fmt: skip
    """q [64, D] -> (total, weights, weight, top), step: all but the last block's product, which `last_product` adds.

    `keys`: blocks of keys, at least one; how many of them have no dead slots, and come first; and what `mask` needs to
    find those. Without `MASK_LATER` only a first block has any.
    """
    blocks, full, dead = keys
    k_s, v_s = memory
    k_full, k_empty, _, _ = barriers
    score_l: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    out_l: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    weights_l: gl.constexpr = gl.DotOperandLayout(0, out_l, 2)
    nothing = gl.zeros([ROWS, KEYS], gl.float32, score_l)

    wait_slot(k_full, step, K_SLOTS, True)
    k_slot = step % K_SLOTS
    scores = warpgroup_mma(q, _keys(k_s, k_slot, D), nothing, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(k_empty.index(k_slot), count=1)
    if full == 0:
        scores = mask(scores, 0, gl.arange(0, KEYS, gl.SliceLayout(0, score_l)), dead)
    top = gl.max(scores, 1) * scale_log2
    p = gl.exp2(scores * scale_log2 - top[:, None])
    weight = gl.sum(p, 1)
    weights = gl.convert_layout(p.to(v_s.dtype), weights_l)
    total = gl.zeros([ROWS, D], gl.float32, out_l)
    wait_slot(k_full, step + 1, K_SLOTS, blocks > 1)
    # Two loops, so that the one that nearly all blocks go through is one piece to the scheduler.
    for block in range(1, full if MASK_LATER else blocks):
        total, weights, weight, top = _next_block(
            q, (total, weights, weight, top), step, block, blocks, scale_log2, memory, barriers, None, dead,
            D, K_SLOTS, V_SLOTS,
        )  # fmt: skip
        step += 1
    if MASK_LATER:
        for block in range(gl.maximum(full, 1), blocks):
            total, weights, weight, top = _next_block(
                q, (total, weights, weight, top), step, block, blocks, scale_log2, memory, barriers, mask, dead,
                D, K_SLOTS, V_SLOTS,
            )  # fmt: skip
            step += 1
    return (total, weights, weight, top), step


@gluon.jit
def _next_block(
    q, made, step, block, blocks, scale_log2, memory, barriers, mask: gl.constexpr, dead, D, K_SLOTS, V_SLOTS
):  # fmt: skip
    """The block's own softmax, and the product of the one before it."""
    total, weights, weight, top = made
    k_s, v_s = memory
    k_full, k_empty, v_full, v_empty = barriers
    score_l: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    out_row: gl.constexpr = gl.SliceLayout(1, total.type.layout)
    weights_l: gl.constexpr = gl.DotOperandLayout(0, total.type.layout, 2)
    nothing = gl.zeros([ROWS, KEYS], gl.float32, score_l)
    k_slot = (step + 1) % K_SLOTS
    scores_later = warpgroup_mma(q, _keys(k_s, k_slot, D), nothing, use_acc=False, is_async=True)
    wait_slot(v_full, step, V_SLOTS, True)
    total_later = warpgroup_mma(weights, _values(v_s, step % V_SLOTS, D), total, is_async=True)
    scores = warpgroup_mma_wait(1, deps=[scores_later])
    mbarrier.arrive(k_empty.index(k_slot), count=1)
    if mask is not None:
        scores = mask(scores, block, gl.arange(0, KEYS, gl.SliceLayout(0, score_l)), dead)
    new_top = gl.maximum(top, gl.max(scores, 1) * scale_log2)
    p = gl.exp2(scores * scale_log2 - new_top[:, None])
    fade = gl.exp2(top - new_top)
    weight = weight * fade + gl.sum(p, 1)
    # The assembler moves the wait for the values' product up to the start of its basic block, which would undo the
    # overlap. Waiting here for the next keys, which are needed anyway, ends the block after the exponentials.
    wait_slot(k_full, step + 2, K_SLOTS, block + 1 < blocks)
    total, weights = warpgroup_mma_wait(0, deps=[total_later, weights])
    mbarrier.arrive(v_empty.index(step % V_SLOTS), count=1)
    weights = gl.convert_layout(p.to(v_s.dtype), weights_l)
    total = total * gl.convert_layout(fade, out_row)[:, None]
    return total, weights, weight, new_top


@gluon.jit
def last_product(made, step, memory, barriers, D, V_SLOTS):
    """-> [64, D] float32, normalised."""
    total, weights, weight, _ = made
    _, v_s = memory
    _, _, v_full, v_empty = barriers
    out_row: gl.constexpr = gl.SliceLayout(1, total.type.layout)
    wait_slot(v_full, step, V_SLOTS, True)
    total_later = warpgroup_mma(weights, _values(v_s, step % V_SLOTS, D), total, is_async=True)
    total, weights = warpgroup_mma_wait(0, deps=[total_later, weights])
    mbarrier.arrive(v_empty.index(step % V_SLOTS), count=1)
    return total / gl.convert_layout(weight, out_row)[:, None]


@gluon.jit
def short_block(made, q, step, live, scale_log2, memory, barriers, D, K_SLOTS, V_SLOTS, SHORT: gl.constexpr):
    """`last_product` with one more block behind it, of which only the first `SHORT` keys are multiplied and the first
    `live` count: what a sequence has beyond whole blocks need not cost one."""
    k_s, v_s = memory
    k_full, k_empty, v_full, v_empty = barriers
    total, weights, weight, top = made
    score_l: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SHORT, 16])
    row: gl.constexpr = gl.SliceLayout(1, score_l)
    out_row: gl.constexpr = gl.SliceLayout(1, total.type.layout)
    weights_l: gl.constexpr = gl.DotOperandLayout(0, total.type.layout, 2)
    nothing = gl.zeros([ROWS, SHORT], gl.float32, score_l)
    k_slot = (step + 1) % K_SLOTS
    wait_slot(k_full, step + 1, K_SLOTS, True)
    keys = k_s.index(k_slot).reshape([KEYS, D]).slice(0, SHORT).permute((1, 0))
    scores_later = warpgroup_mma(q, keys, nothing, use_acc=False, is_async=True)
    wait_slot(v_full, step, V_SLOTS, True)
    total_later = warpgroup_mma(weights, _values(v_s, step % V_SLOTS, D), total, is_async=True)
    scores = warpgroup_mma_wait(1, deps=[scores_later])
    mbarrier.arrive(k_empty.index(k_slot), count=1)
    scores = gl.where((gl.arange(0, SHORT, gl.SliceLayout(0, score_l)) < live)[None, :], scores, float("-inf"))
    top = gl.convert_layout(top, row)
    new_top = gl.maximum(top, gl.max(scores, 1) * scale_log2)
    p = gl.exp2(scores * scale_log2 - new_top[:, None])
    fade = gl.exp2(top - new_top)
    weight = gl.convert_layout(weight, row) * fade + gl.sum(p, 1)
    total, weights = warpgroup_mma_wait(0, deps=[total_later, weights])
    mbarrier.arrive(v_empty.index(step % V_SLOTS), count=1)
    step += 1
    last_weights = gl.convert_layout(p.to(v_s.dtype), weights_l)
    total = total * gl.convert_layout(fade, out_row)[:, None]
    wait_slot(v_full, step, V_SLOTS, True)
    values = _values(v_s, step % V_SLOTS, D).slice(0, SHORT)
    total_later = warpgroup_mma(last_weights, values, total, is_async=True)
    total, last_weights = warpgroup_mma_wait(0, deps=[total_later, last_weights])
    mbarrier.arrive(v_empty.index(step % V_SLOTS), count=1)
    return total / gl.convert_layout(weight, out_row)[:, None]


@gluon.jit
def pass_by(blocks, step, barriers, K_SLOTS, V_SLOTS):
    """Rows that are all padding: only let the blocks go."""
    k_full, k_empty, v_full, v_empty = barriers
    for _ in range(blocks):
        wait_slot(k_full, step, K_SLOTS, True)
        mbarrier.arrive(k_empty.index(step % K_SLOTS), count=1)
        wait_slot(v_full, step, V_SLOTS, True)
        mbarrier.arrive(v_empty.index(step % V_SLOTS), count=1)
        step += 1


@gluon.jit
def wait_slot(full, step, SLOTS, wanted):
    mbarrier.wait(full.index(step % SLOTS), step // SLOTS & 1, pred=wanted)


@gluon.jit
def make_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers


@gluon.jit
def _keys(k_s, slot, D: gl.constexpr):
    return k_s.index(slot).reshape([KEYS, D]).permute((1, 0))


@gluon.jit
def _values(v_s, slot, D: gl.constexpr):
    return v_s.index(slot).reshape([KEYS, D])
