"""Gluon: a warpgroup that hands out query tiles and copies q, k and v into shared memory, row by row, ahead of need."""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from vflash_adapters.attention.hopper.softmax_loop import KEYS, ROWS
from vflash_adapters.attention.veda.hopper_item import FIELDS, fields, key_rows

EIGHT = gl.constexpr(8)
# Later releases of Triton renamed it.
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.jit
def produce(inputs, strides, tables, tiles, total, memory, barriers, D, K_SLOTS, V_SLOTS, ONE_STRIDE):
    """Takes the next item from the counter until all are taken; an item of -1 tells the consumers to stop."""
    q_ptr, k_ptr, v_ptr, items_ptr, counter_ptr = inputs
    lists_ptr, rows_ptr = tables
    q_s, k_s, v_s, item_s = memory
    q_full, q_empty, k_full, k_empty, v_full, v_empty, item_full, item_empty = barriers
    q_row_stride, q_head_stride, k_row_stride, k_head_stride, v_row_stride, v_head_stride = strides
    # 16 bytes a thread, whole rows by a warp; four rows a thread in sequence, so that their numbers load together.
    layout: gl.constexpr = gl.BlockedLayout([4, 8], [256 // D, D // 8], [4, 1], [1, 0])
    offs = gl.arange(0, KEYS, gl.SliceLayout(1, layout))
    offs_half = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    offs_d = gl.arange(0, D, gl.SliceLayout(0, layout))[None, :]
    number, item = _take(items_ptr, counter_ptr, total)
    taken = 0
    step = 0
    while number < total:
        head, at, valid, full, n_full, quarters, n_quarters, blocks = fields(item)
        full_ptr, quarters_ptr = lists_ptr + full, lists_ptr + quarters
        table = rows_ptr + at // tiles * tiles * KEYS
        buffer = taken % 2
        _publish(item, taken, item_s, item_full, item_empty)
        if blocks > 0:
            wide = head.to(gl.int64)
            rows = key_rows(0, full_ptr, n_full, quarters_ptr, n_quarters, table, offs)
            q_head = q_ptr + wide * q_head_stride + offs_d
            k_head = k_ptr + wide * k_head_stride + offs_d
            v_head = v_ptr + wide * v_head_stride + offs_d
            q_table = rows_ptr + at * KEYS
            mbarrier.wait(q_empty.index(buffer), (taken // 2 & 1) ^ 1)
            for half in gl.static_range(2):
                q_rows = gl.load(q_table + half * ROWS + offs_half, mask=half * ROWS + offs_half < valid, other=0)
                _copy(q_s.index(buffer * 2 + half), q_head + _offsets(q_rows, q_row_stride))
            async_copy.mbarrier_arrive(q_full.index(buffer), increment_count=False)
            number, item = _take(items_ptr, counter_ptr, total)
            for block in range(blocks):
                k_offs = _offsets(rows, k_row_stride)
                v_offs = k_offs if ONE_STRIDE else _offsets(rows, v_row_stride)
                if block + 1 < blocks:
                    rows = key_rows(block + 1, full_ptr, n_full, quarters_ptr, n_quarters, table, offs)
                # No fence follows the copies: they complete on the barrier that the products wait for, which is enough
                # in Triton's own pipelines of such copies and in CUTLASS's.
                k_slot = step % K_SLOTS
                mbarrier.wait(k_empty.index(k_slot), (step // K_SLOTS & 1) ^ 1)
                _copy(k_s.index(k_slot), k_head + k_offs)
                async_copy.mbarrier_arrive(k_full.index(k_slot), increment_count=False)
                v_slot = step % V_SLOTS
                mbarrier.wait(v_empty.index(v_slot), (step // V_SLOTS & 1) ^ 1)
                _copy(v_s.index(v_slot), v_head + v_offs)
                async_copy.mbarrier_arrive(v_full.index(v_slot), increment_count=False)
                step += 1
        else:
            mbarrier.wait(q_empty.index(buffer), (taken // 2 & 1) ^ 1)
            async_copy.mbarrier_arrive(q_full.index(buffer), increment_count=False)
            number, item = _take(items_ptr, counter_ptr, total)
        taken += 1
    _publish(gl.full([FIELDS], -1, gl.int32, item.type.layout), taken, item_s, item_full, item_empty)


@gluon.jit
def _offsets(rows, row_stride):
    """Of rows, in elements. A row number times a stride passes 2^31 near 100,000 fused rows; counted in eights it does
    not (`attend_kept` sees to it), and a 32-bit product that is widened last costs half the instructions."""
    return ((rows * (row_stride // EIGHT)).to(gl.int64) * EIGHT)[:, None]


@gluon.jit
def _take(items_ptr, counter_ptr, total):
    """The next item's number and fields, which nobody waits for before they are used."""
    number = gl.atomic_add(counter_ptr, 1, sem="relaxed")
    at = gl.arange(0, FIELDS, gl.BlockedLayout([8], [32], [4], [0]))
    return number, gl.load(items_ptr + gl.minimum(number, total - 1) * FIELDS + at)


@gluon.jit
def _publish(item, taken, item_s, item_full, item_empty):
    buffer = taken % 2
    mbarrier.wait(item_empty.index(buffer), (taken // 2 & 1) ^ 1)
    item_s.index(buffer).store(item)
    mbarrier.arrive(item_full.index(buffer), count=1)
