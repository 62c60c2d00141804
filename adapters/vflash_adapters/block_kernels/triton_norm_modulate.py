"""RMSNorm, modulation and, on demand, row quantisation in one pass: each row is read once and written once."""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

from vflash_adapters.linear.triton_rows import store_fp8_row


def launch_norm_modulate(
    x: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    scale: torch.Tensor,
    rows: torch.Tensor,
    out: torch.Tensor,
    out_scales: torch.Tensor | None,
    *,
    eps: float,
    num_warps: int,
) -> None:
    """x [S, C], weight [C], shift and scale [R, C], rows [S] int64 -> contiguous `out` [S, C]: codes if scales too."""
    tokens, width = x.shape
    if tokens == 0:
        return
    _norm_modulate[(tokens,)](
        x,
        weight,
        shift,
        scale,
        rows,
        out,
        out if out_scales is None else out_scales,
        x.stride(0),
        shift.stride(0),
        scale.stride(0),
        eps,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        FP8=out_scales is not None,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )


@triton.jit
def _norm_modulate(
    x_ptr,
    weight_ptr,
    shift_ptr,
    scale_ptr,
    rows_ptr,
    out_ptr,
    out_scales_ptr,
    x_stride,
    shift_stride,
    scale_stride,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    FP8: tl.constexpr,
):
    dtype = x_ptr.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    table_row = tl.load(rows_ptr + token)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    x = tl.load(x_ptr + token * x_stride + columns, mask=inside, other=0.0, eviction_policy="evict_first")
    x = x.to(tl.float32)
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + eps)

    # read after the reduction: cached by the row before, and fewer registers leave room for more rows in flight
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0, eviction_policy="evict_last")
    scale = tl.load(scale_ptr + table_row * scale_stride + columns, mask=inside, eviction_policy="evict_last")
    shift = tl.load(shift_ptr + table_row * shift_stride + columns, mask=inside, eviction_policy="evict_last")
    # each line rounds to the model's dtype, as separate operators would
    normed = (x * inverse_rms * weight.to(tl.float32)).to(dtype)
    factor = (1.0 + scale.to(tl.float32)).to(dtype)
    scaled = (normed.to(tl.float32) * factor.to(tl.float32)).to(dtype)
    result = (scaled.to(tl.float32) + shift.to(tl.float32)).to(dtype)
    if FP8:
        result = tl.where(inside, result, 0.0)
        store_fp8_row(result, out_ptr, out_scales_ptr, token, columns, inside, WIDTH)
    else:
        tl.store(out_ptr + token * WIDTH + columns, result, mask=inside)
