"""The linears of the video VAE's transformer decoder: as loaded, or as W8A8 over FP8 rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from attrs import frozen

from vflash_adapters.linear.row_fp8 import RowFP8Execution
from vflash_ports.linear import ActivationFormat, Fp8Rows


class DecoderLinear(Protocol):
    """`values` [rows, in], dense or what it `consumes` -> [rows, out] in the decoder's dtype, its bias added."""

    @property
    def consumes(self) -> ActivationFormat: ...

    def __call__(self, values: torch.Tensor | Fp8Rows) -> torch.Tensor: ...


BindLinear = Callable[[torch.Tensor, torch.Tensor | None], DecoderLinear]
"""A weight [out, in] and its bias [out] -> the linear."""


def dense_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> DecoderLinear:
    """Over the weight itself, in its own dtype."""
    return _Dense(weight=weight, bias=bias)


def fp8_linear(*, row_kernels: str, fast_accum: bool) -> BindLinear:
    """Over E4M3 codes made from the BF16 weight on its device, one float32 scale a row; the weight is let go.

    A row that holds NaN or infinity gives non-finite results, which the delivery of frames refuses.
    """
    return partial(_fp8_linear, RowFP8Execution("w8a8", activation_quantizer=row_kernels, fast_accum=fast_accum))


def _fp8_linear(execution: RowFP8Execution, weight: torch.Tensor, bias: torch.Tensor | None) -> DecoderLinear:
    rows = execution.quantise(weight)
    return _Fp8(execution=execution, rows=rows, bias=bias)


@frozen(kw_only=True, eq=False)
class _Dense:
    weight: torch.Tensor
    bias: torch.Tensor | None
    consumes = ActivationFormat.DENSE

    def __call__(self, values: torch.Tensor | Fp8Rows) -> torch.Tensor:
        assert not isinstance(values, Fp8Rows), "a dense linear was fed FP8 rows: emit what it consumes"
        return F.linear(values, self.weight, self.bias)


@frozen(kw_only=True, eq=False)
class _Fp8:
    execution: RowFP8Execution
    rows: Fp8Rows
    bias: torch.Tensor | None
    consumes = ActivationFormat.FP8_ROWS

    def __call__(self, values: torch.Tensor | Fp8Rows) -> torch.Tensor:
        if isinstance(values, Fp8Rows):
            return self.execution.linear_rows(values, self.rows.codes, self.rows.scales, self.bias)
        return self.execution.linear(values, self.rows.codes, self.rows.scales, self.bias)
