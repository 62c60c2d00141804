"""RMSNorm of every head of q and k and rotate-half of its leading channels, over q and k inside `qkv`."""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

from vflash_adapters.linear.triton_rows import require_rows

_NAME = "the video decoder's q/k norm"
_BLOCK_ELEMENTS = 2048  # of one program: 16 a thread


def triton_head_norm_rope(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, heads: int, eps: float) -> None:
    """See `HeadNormRope`; rows may be strided, columns are contiguous."""
    require_rows(_NAME, qkv, cos, sin)
    tokens, width = qkv.shape[0], qkv.shape[1] // (3 * heads)
    columns = triton.next_power_of_2(width)
    block = max(1, min(triton.next_power_of_2(2 * heads), _BLOCK_ELEMENTS // columns))
    if tokens:
        _head_norm_rope[(tokens, triton.cdiv(2 * heads, block))](
            qkv,
            cos,
            sin,
            qkv.stride(0),
            cos.stride(0),
            sin.stride(0),
            cos.shape[0],
            eps,
            HEADS=heads,
            WIDTH=width,
            HALF=cos.shape[1] // 2,
            COLUMNS=columns,
            BLOCK=block,
            num_warps=max(1, block * columns // 512),
            enable_fp_fusion=False,
        )


@triton.jit
def _head_norm_rope(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    qkv_stride,
    cos_stride,
    sin_stride,
    angles,
    eps,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # whole heads, so that each request to memory is one full line; a channel's partner is read again, from cache
    dtype = qkv_ptr.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    vectors = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[:, None]  # q heads, then k heads
    columns = tl.arange(0, COLUMNS)[None, :]
    live = (vectors < 2 * HEADS) & (columns < WIDTH)
    first = columns < HALF
    second = (columns >= HALF) & (columns < 2 * HALF)
    at = qkv_ptr + token * qkv_stride + vectors * WIDTH + columns
    x = tl.load(at, mask=live, other=0.0).to(tl.float32)
    following = tl.load(at + HALF, mask=live & first, other=0.0).to(tl.float32)
    preceding = tl.load(at - HALF, mask=live & second, other=0.0).to(tl.float32)
    tl.debug_barrier()  # no thread writes before every thread has read its partners

    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / WIDTH + eps)
    x = _rounded(x * inverse_rms, dtype)
    partner = _rounded((preceding - following) * inverse_rms, dtype)  # one of the two is zero
    turning = columns < 2 * HALF
    angle = token % angles
    cos = tl.load(cos_ptr + angle * cos_stride + columns, mask=turning, other=1.0)
    sin = tl.load(sin_ptr + angle * sin_stride + columns, mask=turning, other=0.0)
    # cosine and sine are rounded first, and each product before the sum, as separate operators would
    turned = _rounded(x * _rounded(cos, dtype), dtype) + _rounded(partner * _rounded(sin, dtype), dtype)
    tl.store(at, turned.to(dtype), mask=live)


@triton.jit
def _rounded(values, dtype: tl.constexpr):
    return values.to(dtype).to(tl.float32)
