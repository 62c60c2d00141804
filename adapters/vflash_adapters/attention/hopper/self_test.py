"""A small dense attention with a known answer, run on a device before the kernel is entrusted with anything."""

from __future__ import annotations

import torch

from vflash_adapters.attention.hopper.admission import DenseAttend
from vflash_ports.errors import UnsupportedError

SEQUENCES, HEADS = 2, 66
"""From 512 rows on a head has at least three tiles of queries, so that each of 132 processors takes three of them, and
its two places for queries go round. Fewer rows have fewer tiles, and may not."""
KEY_BLOCK = 128
"""Keys of a block; the kernel's own number, kept here so that a machine without Triton can read it."""
WHOLE_BLOCKS = 4
"""Of keys, ahead of what is beyond whole blocks: one more than there are places for them."""
SPREAD, APART = 1.5, 1.0
"""Standard deviation of q, k and v; and how far q lies above zero and k below, so that a key of zeros, as the copy
engine reads behind the last row, would weigh more than most real ones."""
TOLERANCE = 0.01
"""Relative L2 error of the worst head. 16-bit rounding makes about 0.002; a wrong row over 0.03, a key of padding or a
lost key over 0.1."""


def few_rows(rows: int) -> int:
    """The fewest that run all parts of the same program as `rows`: as many beyond whole blocks of keys."""
    return min(rows, WHOLE_BLOCKS * KEY_BLOCK + rows % KEY_BLOCK)


def check_dense(
    attend: DenseAttend, device: torch.device, dtype: torch.dtype, head_dim: int, rows: int, *, what: str, cure: str
) -> None:
    """Raises `UnsupportedError` if the kernel fails, or is not within `TOLERANCE` of float32, on `rows` rows.

    As the product calls it: thirds of fused projections, the result of two sequences beside q, then over it, which must
    give the same bits. With the most rows that `few_rows` gives, 639, and heads of 128 it holds for a moment 64.8 MB of
    q, k and v, 21.6 MB of the result and 10.8 MB of comparison: under 0.1 GB. `torch.OutOfMemoryError` passes through.
    """
    where = f"{what} failed its self-test on {device} in {dtype}, {rows} rows of heads of {head_dim}"
    q, k, v = _inputs(device, dtype, head_dim, rows)
    out = torch.full(q.shape, float("nan"), dtype=dtype, device=device)
    try:
        worst = float(_worst_error(attend(q, k, v, out), q, k, v))
        same = torch.equal(attend(q, k, v, q), out)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler or a driver raises means that this device cannot run it
        raise UnsupportedError(f"{where}: {error}; {cure}") from error
    if not worst <= TOLERANCE:
        raise UnsupportedError(f"{where}: relative error {worst:.3g} exceeds {TOLERANCE}; {cure}")
    if not same:
        raise UnsupportedError(f"{where}: over q it gives another result than beside it; {cure}")


def _inputs(
    device: torch.device, dtype: torch.dtype, head_dim: int, rows: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    shape = (SEQUENCES, rows, 3, HEADS, head_dim)
    q, k, v = torch.randn(shape, generator=generator, device=device, dtype=dtype).mul_(SPREAD).unbind(2)
    return q.add_(APART), k.sub_(APART), v


def _worst_error(found: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads = ((sequence, head) for sequence in range(SEQUENCES) for head in range(HEADS))
    return torch.stack([_error(*(x[at, :, head].float() for x in (found, q, k, v))) for at, head in heads]).max()


def _error(out_SD: torch.Tensor, q_SD: torch.Tensor, k_SD: torch.Tensor, v_SD: torch.Tensor) -> torch.Tensor:
    expected_SD = torch.softmax(q_SD @ k_SD.T * q_SD.shape[1] ** -0.5, dim=-1) @ v_SD
    return (out_SD - expected_SD).norm() / expected_SD.norm()
