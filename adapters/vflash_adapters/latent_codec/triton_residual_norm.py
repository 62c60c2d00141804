"""x += update * scale and the RMSNorm of the sum in one pass: float32 stream, one rounding to the decoder's dtype."""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

from vflash_adapters.linear.triton_rows import require_rows

_NAME = "the video decoder's residual norm"


def triton_residual_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    dtype: torch.dtype,
    update: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `ScaledResidualNorm`; rows may be strided, columns are contiguous."""
    require_rows(_NAME, x, *(() if update is None else (update,)))
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=dtype, device=x.device)
    if rows:
        _scaled_residual_norm[(rows,)](
            x,
            x if update is None else update,
            weight if scale is None else scale,
            weight,
            out,
            x.stride(0),
            0 if update is None else update.stride(0),
            eps,
            WIDTH=width,
            BLOCK=triton.next_power_of_2(width),
            UPDATE=update is not None,
            num_warps=max(1, triton.next_power_of_2(width) // 512),
            enable_fp_fusion=False,
        )
    return out


@triton.jit
def _scaled_residual_norm(
    x_ptr,
    update_ptr,
    scale_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    update_stride,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    UPDATE: tl.constexpr,
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
    tl.store(out_ptr + row * WIDTH + columns, normed.to(out_ptr.dtype.element_ty), mask=inside)
