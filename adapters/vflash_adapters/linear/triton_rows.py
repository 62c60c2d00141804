"""Row quantisation on the GPU in one pass, bit-equal to `row_quantiser.quantise_rows`; imports Triton."""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

from vflash_adapters.linear.row_quantiser import E4M3_MAX, INVERSE_E4M3_MAX, SMALLEST_SCALE
from vflash_ports.errors import UnsupportedError
from vflash_ports.linear import Fp8Rows

WIDEST_ROW = 65536  # one program holds a whole row in registers
_INVERSE_E4M3_MAX = tl.constexpr(INVERSE_E4M3_MAX)
_SMALLEST_AMAX_BITS = tl.constexpr(int(torch.tensor(SMALLEST_SCALE * E4M3_MAX).view(torch.int32)))
_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)


def quantise_rows_triton(values: torch.Tensor) -> Fp8Rows:
    """`values` [rows, k] on CUDA, last stride 1, any row stride -> codes [rows, k] E4M3, scales [rows, 1] float32."""
    require_rows("the Triton row quantiser", values)
    result = empty_rows(values.shape[0], values.shape[1], values.device)
    quantise_into(values, result.codes, result.scales)
    return result


def quantise_into(values: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """Fill contiguous `codes` and `scales`. Codes of a wider dtype than E4M3 receive the values before that cast."""
    rows, width = values.shape
    if rows == 0:
        return
    block = triton.next_power_of_2(width)
    _quantise[(rows,)](
        values,
        codes,
        scales,
        values.stride(0),
        WIDTH=width,
        BLOCK=block,
        num_warps=warps_for(block),
        enable_fp_fusion=False,
    )


def restore_rows_triton(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Contiguous codes [rows, k] * scales [rows, 1] -> [rows, k] in `dtype`; bit-equal to `restore_rows`."""
    require_rows("the Triton restorer", codes)
    rows, width = codes.shape
    out = torch.empty(rows, width, dtype=dtype, device=codes.device)
    if rows > 0:
        block = min(4096, triton.next_power_of_2(width))
        _restore[(rows, triton.cdiv(width, block))](
            codes, scales, out, WIDTH=width, BLOCK=block, num_warps=max(1, block // 512), enable_fp_fusion=False
        )
    return out


def empty_rows(rows: int, width: int, device: torch.device) -> Fp8Rows:
    """Unfilled FP8 rows, for a kernel to write."""
    codes = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=device)
    return Fp8Rows(codes=codes, scales=torch.empty(rows, 1, dtype=torch.float32, device=device))


def warps_for(block: int) -> int:
    """32 elements a thread, at least one and at most 16 warps."""
    return max(1, min(16, block // 1024))


def require_rows(what: str, *tensors: torch.Tensor) -> None:
    """Raise `UnsupportedError` unless each tensor is [rows, width] on CUDA with contiguous, boundedly wide rows."""
    for tensor in tensors:
        if tensor.device.type != "cuda" and not triton.knobs.runtime.interpret:
            raise UnsupportedError(f"{what} needs CUDA tensors, not {tensor.device}: choose the torch implementation")
        if tensor.ndim != 2 or (tensor.stride(1) != 1 and tensor.shape[1] > 1):
            raise UnsupportedError(f"{what} reads rows of contiguous elements, not strides {tensor.stride()}")
        if not 0 < tensor.shape[1] <= WIDEST_ROW:
            raise UnsupportedError(f"{what} takes 1 to {WIDEST_ROW} columns, not {tensor.shape[1]}")


@triton.jit
def _quantise(values_ptr, codes_ptr, scales_ptr, row_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # widened before the stride multiply: a view may span 2^31 elements
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    values = tl.load(values_ptr + row * row_stride + columns, mask=inside, other=0.0)
    store_fp8_row(values, codes_ptr, scales_ptr, row, columns, inside, WIDTH)


@triton.jit
def _restore(codes_ptr, scales_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    codes = tl.load(codes_ptr + row * WIDTH + columns, mask=inside, eviction_policy="evict_first")
    restored = codes.to(tl.float32) * tl.load(scales_ptr + row)
    tl.store(out_ptr + row * WIDTH + columns, restored.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def store_fp8_row(values, codes_ptr, scales_ptr, row, columns, inside, WIDTH: tl.constexpr):
    """Write one row, already rounded to the model's dtype, as codes and its scale. `row` is int64.

    The maximum is taken over bit patterns: as integers, NaN > infinity > every finite number, so none is dropped.
    """
    wide = values.to(tl.float32)
    amax_bits = tl.max(tl.abs(wide).to(tl.int32, bitcast=True), axis=0)
    scale = amax_bits.to(tl.float32, bitcast=True) * _INVERSE_E4M3_MAX
    scale = tl.where(amax_bits < _SMALLEST_AMAX_BITS, _SMALLEST_SCALE, scale)
    scale = tl.where(amax_bits == 0, 1.0, scale)
    codes = wide * tl.div_rn(1.0, scale)
    tl.store(codes_ptr + row * WIDTH + columns, codes.to(codes_ptr.dtype.element_ty), mask=inside)
    tl.store(scales_ptr + row, scale)
