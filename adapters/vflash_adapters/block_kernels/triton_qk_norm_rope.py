"""Per-head RMSNorm of q and k, then rotate-half of the leading channels, written over q and k inside `qkv`."""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl


def launch_qk_norm_rope(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    heads: int,
    eps: float,
    block: int,
    num_warps: int,
) -> None:
    """qkv [S, 3*H*D]; cos, sin [S, r] float32, r even, r <= D. `block` of the 2*H head vectors a program."""
    tokens = qkv.shape[0]
    if tokens == 0:
        return
    half = cos.shape[1] // 2
    passing = qkv.shape[1] // (3 * heads) - 2 * half
    _qk_norm_rope[(tokens, triton.cdiv(2 * heads, block))](
        qkv,
        q_weight,
        k_weight,
        cos,
        sin,
        qkv.stride(0),
        cos.stride(0),
        sin.stride(0),
        eps,
        HEADS=heads,
        HALF=half,
        HALF_BLOCK=triton.next_power_of_2(half),
        PASS=passing,
        PASS_BLOCK=triton.next_power_of_2(max(1, passing)),
        BLOCK=block,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )


@triton.jit
def _qk_norm_rope(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_ptr,
    sin_ptr,
    qkv_stride,
    cos_stride,
    sin_stride,
    eps,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    PASS: tl.constexpr,
    PASS_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # a head's channels are read as three pieces: the two rotating halves and the passing tail
    WIDTH: tl.constexpr = 2 * HALF + PASS
    dtype = qkv_ptr.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    vectors = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[:, None]  # q heads, then k heads
    is_query, live = vectors < HEADS, vectors < 2 * HEADS
    turning, tail = tl.arange(0, HALF_BLOCK), tl.arange(0, PASS_BLOCK)
    in_half, in_tail = turning < HALF, tail < PASS
    first_at = qkv_ptr + token * qkv_stride + vectors * WIDTH + turning[None, :]
    tail_at = qkv_ptr + token * qkv_stride + vectors * WIDTH + 2 * HALF + tail[None, :]
    half_mask, tail_mask = live & in_half[None, :], live & in_tail[None, :]

    first = tl.load(first_at, mask=half_mask, other=0.0).to(tl.float32)
    second = tl.load(first_at + HALF, mask=half_mask, other=0.0).to(tl.float32)
    squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
    if PASS > 0:
        rest = tl.load(tail_at, mask=tail_mask, other=0.0).to(tl.float32)
        squares += tl.sum(rest * rest, axis=1)
    inverse_rms = tl.rsqrt(squares / WIDTH + eps)[:, None]

    first = _normed(first, inverse_rms, is_query, q_weight_ptr + turning, k_weight_ptr + turning, in_half, dtype)
    turning_far = turning + HALF
    second = _normed(
        second, inverse_rms, is_query, q_weight_ptr + turning_far, k_weight_ptr + turning_far, in_half, dtype
    )
    angle_at = token * cos_stride + turning, token * sin_stride + turning
    cos_first = _rounded_row(cos_ptr + angle_at[0], in_half, dtype)
    sin_first = _rounded_row(sin_ptr + angle_at[1], in_half, dtype)
    cos_second = _rounded_row(cos_ptr + angle_at[0] + HALF, in_half, dtype)
    sin_second = _rounded_row(sin_ptr + angle_at[1] + HALF, in_half, dtype)
    # each product is rounded before the sum, as the separate operators would
    turned_first = (first * cos_first).to(dtype).to(tl.float32) - (second * sin_first).to(dtype).to(tl.float32)
    turned_second = (second * cos_second).to(dtype).to(tl.float32) + (first * sin_second).to(dtype).to(tl.float32)
    tl.store(first_at, turned_first.to(dtype), mask=half_mask)
    tl.store(first_at + HALF, turned_second.to(dtype), mask=half_mask)
    if PASS > 0:
        tail_weights = q_weight_ptr + 2 * HALF + tail, k_weight_ptr + 2 * HALF + tail
        rest = _normed(rest, inverse_rms, is_query, tail_weights[0], tail_weights[1], in_tail, dtype)
        tl.store(tail_at, rest.to(dtype), mask=tail_mask)


@triton.jit
def _normed(x, inverse_rms, is_query, q_weight_at, k_weight_at, inside, dtype: tl.constexpr):
    """x * inverse_rms * weight, in float32 holding a value rounded to `dtype`."""
    q_weight = tl.load(q_weight_at, mask=inside, other=0.0).to(tl.float32)[None, :]
    k_weight = tl.load(k_weight_at, mask=inside, other=0.0).to(tl.float32)[None, :]
    return (x * inverse_rms * tl.where(is_query, q_weight, k_weight)).to(dtype).to(tl.float32)


@triton.jit
def _rounded_row(at, inside, dtype: tl.constexpr):
    return tl.load(at, mask=inside, other=0.0).to(dtype).to(tl.float32)[None, :]
