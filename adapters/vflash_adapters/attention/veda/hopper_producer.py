"""Gluon: a warpgroup that hands out query tiles and copies q, k and v into shared memory, row by row, ahead of need."""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from vflash_adapters.attention.veda.hopper_item import HALF, KEYS, decode, key_rows

# Triton 3.8 renamed it.
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.jit
def produce(qkv, strides, lists_ptr, rows_ptr, counter_ptr, tables, sizes, memory, barriers, D, SLOTS):
    """Takes the next item number from `counter_ptr` until all are taken; -1 tells the consumers to stop."""
    heads, tiles, n_global, most_video = sizes
    q_s, k_s, v_s, item_s = memory
    q_full, q_empty, k_full, k_empty, v_full, v_empty, item_full, item_empty = barriers
    q_row_stride, q_head_stride, k_row_stride, k_head_stride, v_row_stride, v_head_stride = strides
    # 16 bytes a thread; a warp copies whole rows.
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    offs = gl.arange(0, KEYS, gl.SliceLayout(1, layout))
    offs_half = gl.arange(0, HALF, gl.SliceLayout(1, layout))
    offs_d = gl.arange(0, D, gl.SliceLayout(0, layout))[None, :]
    total = heads * (n_global + most_video)
    item = gl.atomic_add(counter_ptr, 1, sem="relaxed")
    taken = 0
    step = 0
    while item < total:
        _publish(item, taken, item_s, item_full, item_empty)
        buffer = taken % 2
        mbarrier.wait(q_empty.index(buffer), (taken // 2 & 1) ^ 1)
        head, shape, tile, valid, full, n_full, quarters, n_quarters, blocks = decode(item, tables, sizes)
        table = rows_ptr + shape * tiles * KEYS
        if blocks > 0:
            q_head = qkv[0] + head.to(gl.int64) * q_head_stride
            for half in gl.static_range(2):
                at = half * HALF + offs_half
                q_rows = gl.load(table + tile * KEYS + at, mask=at < valid, other=0).to(gl.int64)
                _copy(q_s.index(buffer * 2 + half), q_head + (q_rows * q_row_stride)[:, None] + offs_d)
        async_copy.mbarrier_arrive(q_full.index(buffer), increment_count=False)
        if blocks > 0:
            k_head = qkv[1] + head.to(gl.int64) * k_head_stride
            v_head = qkv[2] + head.to(gl.int64) * v_head_stride
            rows = key_rows(0, lists_ptr + full, n_full, lists_ptr + quarters, n_quarters, table, offs)
            for block in range(blocks):
                slot = step % SLOTS
                phase = (step // SLOTS & 1) ^ 1
                # A row number times a stride passes 2^31 near 100,000 fused rows: widen before multiplying.
                wide = rows.to(gl.int64)
                if block + 1 < blocks:
                    rows = key_rows(block + 1, lists_ptr + full, n_full, lists_ptr + quarters, n_quarters, table, offs)
                mbarrier.wait(k_empty.index(slot), phase)
                _copy(k_s.index(slot), k_head + (wide * k_row_stride)[:, None] + offs_d)
                async_copy.mbarrier_arrive(k_full.index(slot), increment_count=False)
                mbarrier.wait(v_empty.index(slot), phase)
                _copy(v_s.index(slot), v_head + (wide * v_row_stride)[:, None] + offs_d)
                async_copy.mbarrier_arrive(v_full.index(slot), increment_count=False)
                step += 1
        taken += 1
        item = gl.atomic_add(counter_ptr, 1, sem="relaxed")
    _publish(-1, taken, item_s, item_full, item_empty)


@gluon.jit
def _publish(item, taken, item_s, item_full, item_empty):
    buffer = taken % 2
    mbarrier.wait(item_empty.index(buffer), (taken // 2 & 1) ^ 1)
    item_s.index(buffer).store(gl.full([1], item, gl.int32, gl.BlockedLayout([1], [32], [4], [0])))
    mbarrier.arrive(item_full.index(buffer), count=1)
