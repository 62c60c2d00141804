"""SwiGLU, with or without an adapter's residual merged into its input first, dense or quantised by row."""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

from vflash_adapters.linear.triton_rows import store_fp8_row


def launch_swiglu(
    packed: torch.Tensor,
    residual: torch.Tensor | None,
    residual_scale: torch.Tensor | None,
    out: torch.Tensor,
    out_scales: torch.Tensor | None,
    *,
    block: int,
    num_warps: int,
) -> None:
    """packed, residual [S, 2F], residual_scale float32 -> contiguous `out` [S, F].

    Codes if `out_scales`; `block` must cover F then.
    """
    tokens, width = out.shape
    assert out_scales is None or block >= width
    assert (residual is None) == (residual_scale is None)
    if tokens == 0:
        return
    _swiglu[(tokens, triton.cdiv(width, block))](
        packed,
        packed if residual is None else residual,
        packed if residual_scale is None else residual_scale,
        out,
        out if out_scales is None else out_scales,
        packed.stride(0),
        0 if residual is None else residual.stride(0),
        WIDTH=width,
        BLOCK=block,
        MERGE=residual is not None,
        FP8=out_scales is not None,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )


@triton.jit
def _swiglu(
    packed_ptr,
    residual_ptr,
    residual_scale_ptr,
    out_ptr,
    out_scales_ptr,
    packed_stride,
    residual_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    MERGE: tl.constexpr,
    FP8: tl.constexpr,
):
    dtype = packed_ptr.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    value_at = packed_ptr + token * packed_stride + columns
    value = tl.load(value_at, mask=inside, other=0.0, eviction_policy="evict_first")
    gate = tl.load(value_at + WIDTH, mask=inside, other=0.0, eviction_policy="evict_first")
    if MERGE:
        residual_scale = tl.load(residual_scale_ptr)
        residual_at = residual_ptr + token * residual_stride + columns
        value = _merged(value, tl.load(residual_at, mask=inside, other=0.0), residual_scale, dtype)
        gate = _merged(gate, tl.load(residual_at + WIDTH, mask=inside, other=0.0), residual_scale, dtype)
    wide = gate.to(tl.float32)
    activated = (wide * tl.sigmoid(wide)).to(dtype)
    result = (value.to(tl.float32) * activated.to(tl.float32)).to(dtype)
    if FP8:
        store_fp8_row(result, out_ptr, out_scales_ptr, token, columns, inside, WIDTH)
    else:
        tl.store(out_ptr + token * WIDTH + columns, result, mask=inside)


@triton.jit
def _merged(base, residual, residual_scale, dtype: tl.constexpr):
    """base + residual * scale, rounded after the scale and after the sum."""
    scaled = (residual.to(tl.float32) * residual_scale).to(dtype)
    return (base.to(tl.float32) + scaled.to(tl.float32)).to(dtype)
