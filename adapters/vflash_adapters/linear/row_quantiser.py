"""E4M3 codes and one float32 scale for each row: the one definition that weights and activations share."""

from __future__ import annotations

import torch

from vflash_ports.linear import Fp8Rows

E4M3_MAX = 448.0
SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # both it and its reciprocal are normal float32 numbers


def quantise_rows(values: torch.Tensor) -> Fp8Rows:
    """`values` [rows, k], floating point, any strides -> codes [rows, k] E4M3, scales [rows, 1] float32.

    scale = amax / 448, and at least the smallest normal float32; codes = round(value * (1 / scale)), to nearest even.
    An all-zero row has codes 0 and scale 1. A row that holds NaN or infinity gets a non-finite scale, so whatever is
    computed from it is non-finite too: bad values are never hidden. No rows give empty results.
    """
    wide = values.to(torch.float32)
    if wide.shape[0] == 0 or wide.shape[1] == 0:
        return Fp8Rows(codes=wide.to(torch.float8_e4m3fn), scales=wide.new_ones(wide.shape[0], 1))
    amax = wide.abs().amax(dim=1, keepdim=True)
    scales = torch.where(amax == 0, 1.0, (amax / E4M3_MAX).clamp_min(SMALLEST_SCALE))
    codes = (wide * scales.reciprocal()).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return Fp8Rows(codes=codes, scales=scales)


def restore_rows(rows: Fp8Rows, dtype: torch.dtype) -> torch.Tensor:
    """codes * scales in float32, rounded once to `dtype`."""
    return rows.codes.to(torch.float32).mul_(rows.scales).to(dtype)
