"""Per-head RMSNorm of q and k, then rotate-half of the leading channels, written over q and k inside `qkv`."""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import math

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
        PASS=passing,
        PIECE=_largest_piece(half, passing),
        BLOCK=block,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )


def _largest_piece(half: int, passing: int) -> int:
    """The largest power of two, at most 16, that divides both: no lane of a piece is idle."""
    return math.gcd(half, passing, 16)


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
    PASS: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # a head's channels are read in pieces [BLOCK, PIECE]: those of the first half, their partners, then the tail
    WIDTH: tl.constexpr = 2 * HALF + PASS
    TURNING: tl.constexpr = HALF // PIECE
    dtype = qkv_ptr.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    vectors = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[:, None]  # q heads, then k heads
    is_query, live = vectors < HEADS, vectors < 2 * HEADS
    columns = tl.arange(0, PIECE)[None, :]
    at = qkv_ptr + token * qkv_stride + vectors * WIDTH + columns

    pieces = ()  # Triton's tuples grow by addition alone
    squares = tl.zeros((BLOCK, PIECE), dtype=tl.float32)
    for piece in tl.static_range(WIDTH // PIECE):
        x = tl.load(at + piece * PIECE, mask=live, other=0.0)
        pieces = pieces + (x,)  # type: ignore[assignment]  # noqa: RUF005
        squares += x.to(tl.float32) * x.to(tl.float32)
    inverse_rms = tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / WIDTH + eps)

    cos_at, sin_at = cos_ptr + token * cos_stride + columns, sin_ptr + token * sin_stride + columns
    for piece in tl.static_range(TURNING):
        here, there = piece * PIECE, HALF + piece * PIECE
        first = _normed(pieces[piece], inverse_rms, is_query, q_weight_ptr, k_weight_ptr, columns + here)
        second = _normed(pieces[TURNING + piece], inverse_rms, is_query, q_weight_ptr, k_weight_ptr, columns + there)
        # cosine and sine are rounded first, and each product before the sum, as the separate operators would
        left = _product(first, tl.load(cos_at + here), dtype) - _product(second, tl.load(sin_at + here), dtype)
        right = _product(second, tl.load(cos_at + there), dtype) + _product(first, tl.load(sin_at + there), dtype)
        tl.store(at + here, left.to(dtype), mask=live)
        tl.store(at + there, right.to(dtype), mask=live)
    for piece in tl.static_range(2 * TURNING, WIDTH // PIECE):
        offset = piece * PIECE
        rest = _normed(pieces[piece], inverse_rms, is_query, q_weight_ptr, k_weight_ptr, columns + offset)
        tl.store(at + offset, rest.to(dtype), mask=live)


@triton.jit
def _normed(x, inverse_rms, is_query, q_weight_ptr, k_weight_ptr, columns):
    """x * inverse_rms * weight, in float32 holding a value rounded to x's dtype."""
    weight = tl.where(is_query, tl.load(q_weight_ptr + columns), tl.load(k_weight_ptr + columns)).to(tl.float32)
    return (x.to(tl.float32) * inverse_rms * weight).to(x.dtype).to(tl.float32)


@triton.jit
def _product(x, angle, dtype: tl.constexpr):
    return (x * angle.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
