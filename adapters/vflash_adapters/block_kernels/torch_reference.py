"""The memory-bound stages in plain torch: the arithmetic and rounding order every other adapter is held to."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from vflash_adapters.linear.row_quantiser import quantise_rows
from vflash_ports.linear import ActivationFormat, Fp8Rows

_CHUNK_ELEMENTS = 1 << 22  # temporaries cover this many elements at a time, never a whole [S, C]


class TorchBlockKernels:
    """`torch`: runs on every device and dtype; each operation rounds to the dtype of its operands."""

    name = "torch"

    def check(self, device: torch.device, dtype: torch.dtype) -> None:
        """Runs wherever torch does."""

    def norm_modulate(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        shift: torch.Tensor,
        scale: torch.Tensor,
        rows: torch.Tensor,
        *,
        eps: float,
        emit: ActivationFormat,
    ) -> torch.Tensor | Fp8Rows:
        """See `BlockKernels.norm_modulate`."""
        factor = 1.0 + scale
        out = _Output(x.shape[0], x.shape[1], like=x, emit=emit)
        for chunk in _row_chunks(x.shape[0], x.shape[1]):
            normed = F.rms_norm(x[chunk], weight.shape, weight, eps)
            normed *= factor.index_select(0, rows[chunk])
            normed += shift.index_select(0, rows[chunk])
            out.put(chunk, normed)
        return out.result()

    def qk_norm_rope(
        self,
        qkv: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *,
        heads: int,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `BlockKernels.qk_norm_rope`. q and k are written over their thirds of `qkv`; all three are its views."""
        q_SHD, k_SHD, v_SHD = qkv.unflatten(1, (3, heads, -1)).unbind(1)
        for chunk in _row_chunks(qkv.shape[0], qkv.shape[1]):
            angles = cos[chunk, None].to(qkv.dtype), sin[chunk, None].to(qkv.dtype)
            for part, weight in ((q_SHD, q_weight), (k_SHD, k_weight)):
                part[chunk] = _rotate_leading(F.rms_norm(part[chunk], weight.shape, weight, eps), *angles)
        return q_SHD, k_SHD, v_SHD

    def gate_residual(
        self, x: torch.Tensor, update: torch.Tensor, gate: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """See `BlockKernels.gate_residual`."""
        for chunk in _row_chunks(x.shape[0], x.shape[1]):
            x[chunk] += gate.index_select(0, rows[chunk]) * update[chunk]
        return x

    def swiglu(
        self,
        packed: torch.Tensor,
        *,
        emit: ActivationFormat,
        residual: torch.Tensor | None = None,
        residual_scale: torch.Tensor | None = None,
    ) -> torch.Tensor | Fp8Rows:
        """See `BlockKernels.swiglu`."""
        out = _Output(packed.shape[0], packed.shape[1] // 2, like=packed, emit=emit)
        for chunk in _row_chunks(*packed.shape):
            value, gate = _merged(packed, residual, residual_scale, chunk).chunk(2, dim=1)
            out.put(chunk, F.silu(gate).mul_(value))
        return out.result()


def _merged(
    packed: torch.Tensor, residual: torch.Tensor | None, scale: torch.Tensor | None, chunk: slice
) -> torch.Tensor:
    if residual is None:
        return packed[chunk]
    assert scale is not None, "a residual comes with its scale"
    wide = residual[chunk].to(torch.promote_types(packed.dtype, torch.float32))
    return packed[chunk] + (wide * scale).to(packed.dtype)


class _Output:
    """A dense or FP8 result of [rows, width] that is filled chunk by chunk."""

    def __init__(self, rows: int, width: int, *, like: torch.Tensor, emit: ActivationFormat) -> None:
        self._scales = like.new_empty(rows, 1, dtype=torch.float32) if emit is ActivationFormat.FP8_ROWS else None
        dtype = like.dtype if self._scales is None else torch.float8_e4m3fn
        self._values = like.new_empty(rows, width, dtype=dtype)

    def put(self, chunk: slice, values: torch.Tensor) -> None:
        if self._scales is None:
            self._values[chunk] = values
            return
        quantised = quantise_rows(values)
        self._values[chunk] = quantised.codes
        self._scales[chunk] = quantised.scales

    def result(self) -> torch.Tensor | Fp8Rows:
        return self._values if self._scales is None else Fp8Rows(codes=self._values, scales=self._scales)


def _row_chunks(rows: int, width: int) -> Iterator[slice]:
    step = max(1, _CHUNK_ELEMENTS // max(1, width))
    return (slice(start, start + step) for start in range(0, rows, step))


def _rotate_leading(x_SHD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate-half of the first cos.shape[-1] channels, (a, b) -> (a cos - b sin, b cos + a sin), products rounded."""
    turning, passing = x_SHD.split((cos.shape[-1], x_SHD.shape[-1] - cos.shape[-1]), dim=-1)
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, passing), dim=-1)
