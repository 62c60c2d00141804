"""Gluon: dense attention for compute capability 9.0, one copying warp and two or three computing warpgroups a
processor.

Each item of work is a tile of queries of one head of one sequence. The copy engine brings whole tiles; queries twice,
so that the next item's are there when the last item's output passes through theirs.
"""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

import math

import torch
import triton
from attrs import field, frozen
from attrs.validators import ge
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from vflash_adapters.attention.hopper.softmax_loop import (
    KEYS,
    ROWS,
    last_product,
    make_barriers,
    pass_by,
    short_block,
    softmax_blocks,
)

PRODUCER_REGISTERS = gl.constexpr(24)
# Later releases of Triton renamed it.
_copy = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@frozen(kw_only=True)
class DenseConfig:
    """Computing warpgroups of 64 query rows each, blocks of keys and of values in flight, registers of a computing
    thread.

    Two blocks in flight at least: a block's values are let go of when the keys two blocks on are there, and the copies
    bring the next block's values ahead of those.
    """

    groups: int
    k_slots: int = field(validator=ge(2))
    v_slots: int = field(validator=ge(2))
    consumer_registers: int


CONFIGS = {
    64: DenseConfig(groups=3, k_slots=3, v_slots=3, consumer_registers=160),
    128: DenseConfig(groups=2, k_slots=2, v_slots=3, consumer_registers=240),
}
"""The fastest measured on an H200, by head size."""


def attend(q_BSHD: torch.Tensor, k_BSHD: torch.Tensor, v_BSHD: torch.Tensor, out_BSHD: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v into `out`, which may be q itself: every row is read and written by one item only.

    bfloat16 or float16 on CUDA, D of `CONFIGS`. Heads lie side by side in a row, which may be strided (a third of a
    fused projection); addresses and strides are multiples of 16 bytes. Bit-equal from run to run.
    """
    batch, rows, heads, head_dim = q_BSHD.shape
    chosen = CONFIGS[head_dim]
    tiles = -(-rows // (chosen.groups * ROWS.value))
    total = batch * heads * tiles
    processors = torch.cuda.get_device_properties(q_BSHD.device).multi_processor_count
    rest = rows % KEYS.value if rows > KEYS.value else 0
    short = max(16, triton.next_power_of_2(rest)) if rest else 0
    # A lone sequence has no next one. Its own size, where that passes 2^31, would make a program that is not tested.
    out_batch_stride = out_BSHD.stride(0) if batch > 1 else 0
    _attend[(min(processors, total),)](
        _descriptor(q_BSHD, ROWS.value), _descriptor(k_BSHD, KEYS.value), _descriptor(v_BSHD, KEYS.value),
        out_BSHD, out_batch_stride, *out_BSHD.stride()[1:3],
        rows, heads, tiles, total, head_dim**-0.5 * math.log2(math.e),
        D=head_dim, GROUPS=chosen.groups, K_SLOTS=chosen.k_slots, V_SLOTS=chosen.v_slots,
        SHORT=short, CONSUMER_REGISTERS=chosen.consumer_registers, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return out_BSHD


def _descriptor(x_BSHD: torch.Tensor, block: int) -> TensorDescriptor:
    """Boxes of `block` rows of one head; rows past the end of a sequence read as zeros."""
    batch, rows, heads, head_dim = x_BSHD.shape
    assert x_BSHD.stride(2) == head_dim
    assert x_BSHD.stride(3) == 1
    return TensorDescriptor(
        x_BSHD,
        [batch, rows, heads * head_dim],
        [x_BSHD.stride(0), x_BSHD.stride(1), 1],
        [1, block, head_dim],
        gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3),
    )


# One program for all lengths with as short a last block, which the self-test has compiled before a first call.
@gluon.jit(do_not_specialize=("rows", "heads", "tiles", "total"))
def _attend(
    q_desc, k_desc, v_desc, out_ptr, out_batch_stride, out_row_stride, out_head_stride,
    rows, heads, tiles, total, scale_log2,
    D: gl.constexpr, GROUPS: gl.constexpr, K_SLOTS: gl.constexpr, V_SLOTS: gl.constexpr,
    SHORT: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
):  # fmt: skip
    q_s = gl.allocate_shared_memory(q_desc.dtype, [2 * GROUPS, 1, ROWS, D], q_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, [K_SLOTS, 1, KEYS, D], k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, [V_SLOTS, 1, KEYS, D], v_desc.layout)
    # Full: the copy engine. Empty: every computing warpgroup; of queries the one that they are for.
    q_bars = (make_barriers(2 * GROUPS, 1), make_barriers(2 * GROUPS, 1))
    k_bars = (make_barriers(K_SLOTS, 1), make_barriers(K_SLOTS, GROUPS))
    v_bars = (make_barriers(V_SLOTS, 1), make_barriers(V_SLOTS, GROUPS))
    memory, barriers = (q_s, k_s, v_s), (q_bars, k_bars, v_bars)
    work = (rows, heads, tiles, total)
    out = (out_ptr, out_batch_stride, out_row_stride, out_head_stride)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (0, out, work, scale_log2, memory, barriers, D, GROUPS, K_SLOTS, V_SLOTS, SHORT)),
                (_consume, (1, out, work, scale_log2, memory, barriers, D, GROUPS, K_SLOTS, V_SLOTS, SHORT)),
                (_produce, (q_desc, k_desc, v_desc, work, memory, barriers, D, GROUPS, K_SLOTS, V_SLOTS)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.static_assert(GROUPS == 3)
        gl.warp_specialize(
            [
                (_consume, (0, out, work, scale_log2, memory, barriers, D, GROUPS, K_SLOTS, V_SLOTS, SHORT)),
                (_consume, (1, out, work, scale_log2, memory, barriers, D, GROUPS, K_SLOTS, V_SLOTS, SHORT)),
                (_consume, (2, out, work, scale_log2, memory, barriers, D, GROUPS, K_SLOTS, V_SLOTS, SHORT)),
                (_produce, (q_desc, k_desc, v_desc, work, memory, barriers, D, GROUPS, K_SLOTS, V_SLOTS)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )


@gluon.jit
def _produce(q_desc, k_desc, v_desc, work, memory, barriers, D, GROUPS, K_SLOTS, V_SLOTS):
    rows, heads, tiles, total = work
    q_s, k_s, v_s = memory
    q_bars, k_bars, v_bars = barriers
    blocks = gl.cdiv(rows, KEYS)
    taken = 0
    step = 0
    for item in range(gl.program_id(0), total, gl.num_programs(0)):
        batch, head, first = _place(item, heads, tiles, GROUPS)
        column = head * D
        for group in gl.static_range(GROUPS):
            at = [batch, first + group * ROWS, column]
            _bring(q_desc, at, q_s, q_bars, taken % 2 * GROUPS + group, taken // 2)
        for block in range(blocks):
            at = [batch, block * KEYS, column]
            _bring(k_desc, at, k_s, k_bars, step % K_SLOTS, step // K_SLOTS)
            _bring(v_desc, at, v_s, v_bars, step % V_SLOTS, step // V_SLOTS)
            step += 1
        taken += 1  # noqa: SIM113  # compiled by Triton


@gluon.jit
def _bring(desc, at, shared, bars, slot, use):
    """A box into its slot, once the slot's last use is over."""
    full, empty = bars
    mbarrier.wait(empty.index(slot), (use & 1) ^ 1)
    mbarrier.expect(full.index(slot), desc.block_type.nbytes)
    _copy(desc, at, full.index(slot), shared.index(slot))


@gluon.jit
def _consume(GROUP, out, work, scale_log2, memory, barriers, D, GROUPS, K_SLOTS, V_SLOTS, SHORT):
    """Rows [64 * GROUP, 64 * GROUP + 64) of every item."""
    rows, heads, tiles, total = work
    out_ptr, out_batch_stride, out_row_stride, out_head_stride = out
    q_s, k_s, v_s = memory
    q_bars, k_bars, v_bars = barriers
    q_full, q_empty = q_bars
    loop_bars = (k_bars[0], k_bars[1], v_bars[0], v_bars[1])
    blocks = gl.cdiv(rows, KEYS)
    taken = 0
    step = 0
    for item in range(gl.program_id(0), total, gl.num_programs(0)):
        batch, head, first = _place(item, heads, tiles, GROUPS)
        first += GROUP * ROWS
        slot = taken % 2 * GROUPS + GROUP
        mbarrier.wait(q_full.index(slot), taken // 2 & 1)
        if first < rows:
            q = q_s.index(slot).reshape([ROWS, D])
            made = _attend_rows(q, rows, blocks, step, scale_log2, (k_s, v_s), loop_bars, D, K_SLOTS, V_SLOTS, SHORT)
            place = out_ptr + batch.to(gl.int64) * out_batch_stride + head.to(gl.int64) * out_head_stride
            _store(made, q, place, out_row_stride, first, rows, D)
        else:
            pass_by(blocks, step, loop_bars, K_SLOTS, V_SLOTS)
        mbarrier.arrive(q_empty.index(slot), count=1)
        step += blocks
        taken += 1  # noqa: SIM113  # compiled by Triton


@gluon.jit
def _attend_rows(q, rows, blocks, step, scale_log2, memory, barriers, D, K_SLOTS, V_SLOTS, SHORT: gl.constexpr):
    """`SHORT`: keys to multiply of the last block, where it is not a whole one behind others."""
    live = rows - (blocks - 1) * KEYS
    whole = blocks - 1 if SHORT > 0 else blocks
    keys = (whole, whole - (rows < KEYS).to(gl.int32), live)
    made, last = softmax_blocks(q, keys, step, scale_log2, memory, barriers, _mask_end, D, K_SLOTS, V_SLOTS, False)
    if SHORT > 0:
        out = short_block(made, q, last, live, scale_log2, memory, barriers, D, K_SLOTS, V_SLOTS, SHORT)
    else:
        out = last_product(made, last, memory, barriers, D, V_SLOTS)
    return out


@gluon.jit
def _place(item, heads, tiles, GROUPS: gl.constexpr):
    """Sequence, head and first query row of an item; the tiles of one head follow each other, so that its keys stay in
    cache."""
    return item // (heads * tiles), item // tiles % heads, item % tiles * (GROUPS * ROWS)


@gluon.jit
def _mask_end(scores, block, cols, live):
    """Minus infinity past the end of a sequence that is shorter than one block."""
    return gl.where((cols < live)[None, :], scores, float("-inf"))


@gluon.jit
def _store(made, q, place, row_stride, first, rows, D):
    """Through the query's own shared memory, done with by now, so that whole rows are written."""
    q.store(made.to(q.dtype))
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    at = first + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    offs_d = gl.arange(0, D, gl.SliceLayout(0, layout))
    whole = q.load(layout)
    gl.store(place + (at.to(gl.int64) * row_stride)[:, None] + offs_d[None, :], whole, mask=(at < rows)[:, None])
    fence_async_shared()
