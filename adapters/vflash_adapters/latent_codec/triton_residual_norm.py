"""x += update * scale and the RMSNorm of the sum in one pass: float32 stream, one rounding to the decoder's dtype.

On demand the rounded row is quantised in the same pass.
"""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

from vflash_adapters.linear.triton_rows import empty_rows, require_rows, store_fp8_row
from vflash_ports.errors import UnsupportedError
from vflash_ports.linear import ActivationFormat, Fp8Rows

_NAME = "the video decoder's residual norm"


def triton_residual_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    dtype: torch.dtype,
    emit: ActivationFormat = ActivationFormat.DENSE,
    update: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
) -> torch.Tensor | Fp8Rows:
    """See `ScaledResidualNorm`; rows may be strided, columns are contiguous. FP8 rows are made from BF16."""
    require_rows(_NAME, x, *(() if update is None else (update,)))
    rows, width = x.shape
    result = _empty(rows, width, x.device, dtype, emit)
    out, scales = (result.codes, result.scales) if isinstance(result, Fp8Rows) else (result, result)
    if rows:
        _scaled_residual_norm[(rows,)](
            x,
            x if update is None else update,
            weight if scale is None else scale,
            weight,
            out,
            scales,
            x.stride(0),
            0 if update is None else update.stride(0),
            eps,
            WIDTH=width,
            BLOCK=triton.next_power_of_2(width),
            UPDATE=update is not None,
            FP8=emit is ActivationFormat.FP8_ROWS,
            num_warps=max(1, triton.next_power_of_2(width) // 512),
            enable_fp_fusion=False,
        )
    return result


def _empty(
    rows: int, width: int, device: torch.device, dtype: torch.dtype, emit: ActivationFormat
) -> torch.Tensor | Fp8Rows:
    if emit is ActivationFormat.DENSE:
        return torch.empty(rows, width, dtype=dtype, device=device)
    if dtype != torch.bfloat16:
        raise UnsupportedError(f"{_NAME} makes FP8 rows from bfloat16, not from {dtype}")
    return empty_rows(rows, width, device)


@triton.jit
def _scaled_residual_norm(
    x_ptr,
    update_ptr,
    scale_ptr,
    weight_ptr,
    out_ptr,
    out_scales_ptr,
    x_stride,
    update_stride,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    UPDATE: tl.constexpr,
    FP8: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0)
    if UPDATE:
        update = tl.load(update_ptr + row * update_stride + columns, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + columns, mask=inside, other=0.0, eviction_policy="evict_last")
        x = x + update * scale
        tl.store(x_ptr + row * x_stride + columns, x, mask=inside)
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0, eviction_policy="evict_last")
    normed = x * inverse_rms * weight
    if FP8:
        store_fp8_row(normed.to(tl.bfloat16), out_ptr, out_scales_ptr, row, columns, inside, WIDTH)
    else:
        tl.store(out_ptr + row * WIDTH + columns, normed.to(out_ptr.dtype.element_ty), mask=inside)
