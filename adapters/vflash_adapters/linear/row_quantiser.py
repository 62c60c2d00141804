"""E4M3 codes and one float32 scale for each row: the one definition that weights and activations share."""

from __future__ import annotations

import torch

from vflash_ports.linear import Fp8Rows

E4M3_MAX = 448.0
INVERSE_E4M3_MAX = float(torch.tensor(E4M3_MAX, dtype=torch.float32).reciprocal())
SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # both it and its reciprocal are normal float32 numbers
_CHUNK_ELEMENTS = 1 << 24  # float32 temporaries cover this many elements at a time


def quantise_rows(values: torch.Tensor) -> Fp8Rows:
    """`values` [rows, k], floating point, any strides -> codes [rows, k] E4M3, scales [rows, 1] float32.

    scale = amax * (1 / 448), and at least the smallest normal float32; codes = round(value * (1 / scale)), to nearest
    even. Products with float32 constants, because torch divides by a constant differently on a GPU and on a CPU.
    An all-zero row has codes 0 and scale 1. A row that holds NaN or infinity gets a non-finite scale, so whatever is
    computed from it is non-finite too: bad values are never hidden. No rows give empty results.
    """
    rows, width = values.shape
    codes = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=values.device)
    scales = torch.ones(rows, 1, dtype=torch.float32, device=values.device)
    if values.is_meta:
        return Fp8Rows(codes=codes, scales=scales)  # a plan asks for shapes, many times a request
    step = max(1, _CHUNK_ELEMENTS // max(1, width))
    for start in range(0, rows if width else 0, step):
        chunk = slice(start, start + step)
        codes[chunk], scales[chunk] = _quantise(values[chunk].to(torch.float32))
    return Fp8Rows(codes=codes, scales=scales)


def _quantise(wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    amax = wide.abs().amax(dim=1, keepdim=True)
    scales = torch.where(amax == 0, 1.0, (amax * INVERSE_E4M3_MAX).clamp_min(SMALLEST_SCALE))
    return (wide * scales.reciprocal()).clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scales


def restore_rows(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """codes [rows, k] * scales [rows, 1] in float32, rounded once to `dtype`.

    E4M3 fits into every wider float exactly, and an in-place product with float32 scales computes in float32.
    """
    return codes.to(dtype).mul_(scales)
