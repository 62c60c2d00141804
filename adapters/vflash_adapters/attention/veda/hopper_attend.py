"""Gluon: the attention kernel for compute capability 9.0, with one copying and two computing warpgroups per processor.

A persistent grid takes query tiles from a counter. The copies gather rows through the tile table, so nothing is laid
out anew in memory beforehand, and the output rows are written where they belong.
"""

# Kernels are compiled by Triton, which reads no annotations.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

import math

import torch
from attrs import field, frozen
from attrs.validators import ge
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from vflash_adapters.attention.hopper.row_strides import check_rows
from vflash_adapters.attention.hopper.softmax_loop import make_barriers
from vflash_adapters.attention.veda.hopper_consumer import consume
from vflash_adapters.attention.veda.hopper_producer import EIGHT, produce
from vflash_adapters.attention.veda.kept_lists import KeptLists
from vflash_adapters.attention.veda.tiling import Tiling
from vflash_ports.errors import ContractError

WHAT, CURE = "Veda kernels 'hopper'", "choose veda_kernels='triton'"
FARTHEST = 2**31 * EIGHT.value
"""Elements from the first row to behind the last one, at most: rows are found by 32-bit numbers, counted in eights."""


@frozen(kw_only=True)
class HopperConfig:
    """Blocks of keys and of values in flight, two at least as in `DenseConfig`; registers of a computing and of a
    copying thread. The defaults are the fastest measured on an H200."""

    k_slots: int = field(default=2, validator=ge(2))
    v_slots: int = field(default=3, validator=ge(2))
    consumer_registers: int = 208
    producer_registers: int = 96


def attend_kept(
    q_SHD: torch.Tensor,
    k_SHD: torch.Tensor,
    v_SHD: torch.Tensor,
    kept: KeptLists,
    *,
    tiling: Tiling,
    head_shape: torch.Tensor,
    config: HopperConfig,
) -> torch.Tensor:
    """Written over q, which is returned: every row once, since every row lies in exactly one tile.

    Raises `ContractError`, and launches nothing, where a tensor does not lie as the kernel reads.
    """
    check_rows(WHAT, CURE, heads_beside=False, q=q_SHD, k=k_SHD, v=v_SHD)
    _check_reach(q=q_SHD, k=k_SHD, v=v_SHD)
    head_dim = q_SHD.shape[-1]
    counter = torch.zeros(1, dtype=torch.int32, device=q_SHD.device)
    processors = torch.cuda.get_device_properties(q_SHD.device).multi_processor_count
    _attend_hopper[(processors,)](
        q_SHD, k_SHD, v_SHD, kept.lists, kept.items, tiling.rows, counter,
        *q_SHD.stride()[:2], *k_SHD.stride()[:2], *v_SHD.stride()[:2],
        tiling.tiles, len(kept.items), head_dim**-0.5 * math.log2(math.e),
        D=head_dim, K_SLOTS=config.k_slots, V_SLOTS=config.v_slots, CONSUMER_REGISTERS=config.consumer_registers,
        PRODUCER_REGISTERS=config.producer_registers,
        ONE_STRIDE=k_SHD.stride(0) == v_SHD.stride(0), num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return q_SHD


def _check_reach(**tensors_SHD: torch.Tensor) -> None:
    for name, x_SHD in tensors_SHD.items():
        if x_SHD.shape[0] * x_SHD.stride(0) >= FARTHEST:
            raise ContractError(
                f"{WHAT} reach {FARTHEST:,} elements, but {name} {tuple(x_SHD.shape)} has strides {x_SHD.stride()}; "
                f"make it contiguous, make the clip shorter or smaller, or {CURE}"
            )


@gluon.jit
def _attend_hopper(
    q_ptr, k_ptr, v_ptr, lists_ptr, items_ptr, rows_ptr, counter_ptr,
    q_row_stride, q_head_stride, k_row_stride, k_head_stride, v_row_stride, v_head_stride,
    tiles, total, scale_log2,
    D: gl.constexpr, K_SLOTS: gl.constexpr, V_SLOTS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr, ONE_STRIDE: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    # Queries twice, so that the next item's are there when the last item's output passes through theirs.
    q_s = gl.allocate_shared_memory(dtype, [4, 64, D], shared)
    k_s = gl.allocate_shared_memory(dtype, [K_SLOTS, 128, D], shared)
    v_s = gl.allocate_shared_memory(dtype, [V_SLOTS, 128, D], shared)
    item_s = gl.allocate_shared_memory(gl.int32, [2, 8], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    # Full: 128 copying threads arrive, or the one that publishes an item. Empty: both computing warpgroups do.
    q_full, q_empty = make_barriers(2, 128), make_barriers(2, 2)
    k_full, k_empty = make_barriers(K_SLOTS, 128), make_barriers(K_SLOTS, 2)
    v_full, v_empty = make_barriers(V_SLOTS, 128), make_barriers(V_SLOTS, 2)
    item_full, item_empty = make_barriers(2, 1), make_barriers(2, 2)
    memory = (q_s, k_s, v_s, item_s)
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty, item_full, item_empty)
    strides = (q_row_stride, q_head_stride, k_row_stride, k_head_stride, v_row_stride, v_head_stride)
    inputs, tables = (q_ptr, k_ptr, v_ptr, items_ptr, counter_ptr), (lists_ptr, rows_ptr)
    # Every row of a head is read as a query by one item only, which then writes its result there.
    out = (q_ptr, q_row_stride, q_head_stride)
    gl.warp_specialize(
        [
            (consume, (0, out, tables, scale_log2, memory, barriers, D, K_SLOTS, V_SLOTS)),
            (consume, (1, out, tables, scale_log2, memory, barriers, D, K_SLOTS, V_SLOTS)),
            (
                produce,
                (inputs, strides, tables, tiles, total, memory, barriers, D, K_SLOTS, V_SLOTS, ONE_STRIDE),
            ),
        ],
        [4, 4],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
