"""x + gate[rows] * update, in x's own storage: two reads and one write an element."""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl


def launch_gate_residual(
    x: torch.Tensor, update: torch.Tensor, gate: torch.Tensor, rows: torch.Tensor, *, block: int, num_warps: int
) -> None:
    """x, update [S, C]; gate [R, C]; rows [S] int64. `block` columns a program."""
    tokens, width = x.shape
    if tokens == 0:
        return
    _gate_residual[(tokens, triton.cdiv(width, block))](
        x,
        update,
        gate,
        rows,
        x.stride(0),
        update.stride(0),
        gate.stride(0),
        WIDTH=width,
        BLOCK=block,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )


@triton.jit
def _gate_residual(
    x_ptr,
    update_ptr,
    gate_ptr,
    rows_ptr,
    x_stride,
    update_stride,
    gate_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    dtype = x_ptr.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    table_row = tl.load(rows_ptr + token)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    x_at = x_ptr + token * x_stride + columns
    x = tl.load(x_at, mask=inside)
    update = tl.load(update_ptr + token * update_stride + columns, mask=inside, eviction_policy="evict_first")
    gate = tl.load(gate_ptr + table_row * gate_stride + columns, mask=inside, eviction_policy="evict_last")
    gated = (gate.to(tl.float32) * update.to(tl.float32)).to(dtype)
    tl.store(x_at, (x.to(tl.float32) + gated.to(tl.float32)).to(dtype), mask=inside)
