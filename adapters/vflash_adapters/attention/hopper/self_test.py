"""A small dense attention with a known answer, run on a device before the kernel is entrusted with anything."""

from __future__ import annotations

import torch

from vflash_adapters.attention.hopper.admission import DenseAttend
from vflash_ports.errors import UnsupportedError

HEADS = 200
"""At two tiles of queries each, every processor takes several, so that its slots in shared memory go round."""
KEY_BLOCK = 128
TOLERANCE = 0.01
"""Relative L2 error of the worst head; 16-bit rounding makes about 0.002, a single wrong row over 0.05."""


def few_rows(rows: int) -> int:
    """The fewest that run all parts of the same program as `rows`: as many beyond whole blocks of keys."""
    return min(rows, 2 * KEY_BLOCK + rows % KEY_BLOCK)


def check_dense(
    attend: DenseAttend, device: torch.device, dtype: torch.dtype, head_dim: int, rows: int, *, what: str, cure: str
) -> None:
    """Raises `UnsupportedError` if the kernel fails, or is not within `TOLERANCE` of float32, on `rows` rows.

    As the product calls it: thirds of one fused projection, the result over q. Takes under 0.1 GB for a moment.
    """
    where = f"{what} failed its self-test on {device} in {dtype}, {rows} rows of heads of {head_dim}"
    generator = torch.Generator(device).manual_seed(0)
    fused = torch.randn(1, rows, 3, HEADS, head_dim, generator=generator, device=device, dtype=dtype).mul_(1.5)
    q, k, v = fused.unbind(2)
    queries = q.clone()
    try:
        found = attend(q, k, v, q)
        worst = float(torch.stack([_error(found, queries, k, v, head) for head in range(HEADS)]).max())
    except Exception as error:  # whatever a compiler or a driver raises means that this device cannot run it
        raise UnsupportedError(f"{where}: {error}; {cure}") from error
    if not worst <= TOLERANCE:
        raise UnsupportedError(f"{where}: relative error {worst:.3g} exceeds {TOLERANCE}; {cure}")


def _error(found: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, head: int) -> torch.Tensor:
    out_SD, q_SD, k_SD, v_SD = (x[0, :, head].float() for x in (found, q, k, v))
    expected_SD = torch.softmax(q_SD @ k_SD.T * q_SD.shape[1] ** -0.5, dim=-1) @ v_SD
    return (out_SD - expected_SD).norm() / expected_SD.norm()
