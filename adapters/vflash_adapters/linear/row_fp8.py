"""Linear layers over row-scaled FP8 weights: restored to full width, or multiplied in FP8 (W8A8)."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from types import ModuleType
from typing import TypeVar

import torch
import torch.nn.functional as F

from vflash_adapters.arguments import flag_argument, tensor_argument
from vflash_adapters.linear.row_fp8_record import RowFP8Counters, ScopeTimer
from vflash_adapters.linear.row_quantiser import quantise_rows, restore_rows
from vflash_ports.errors import ContractError, UnsupportedError
from vflash_ports.linear import Fp8Rows

_Choice = TypeVar("_Choice", bound=StrEnum)


class RowFP8Mode(StrEnum):
    WEIGHT_ONLY = "weight-only"
    W8A8 = "w8a8"


class RowKernels(StrEnum):
    """Which implementation of the row operations runs; both give the same bits."""

    TORCH = "torch"
    TRITON = "triton"


ADMITTED_CAPABILITIES = ((9, 0), (12, 0))  # where row-scaled W8A8 is admitted; elsewhere it fails
SCALED_GEMM_ALIGNMENT = 16  # what torch's scaled GEMM asks of both weight dimensions


class RowFP8Execution:
    """Runs `values @ (codes * scales).T`; holds no weights, patches nothing, adds no fence.

    `mode` "weight-only" restores the approximate weight in the values' dtype and runs the ordinary GEMM, on any device
    with `restorer` "torch", on CUDA in one fused pass with "triton".
    "w8a8" quantises each row of the values too and runs torch's scaled GEMM with BF16 out: `activation_quantizer`
    "torch" (CPU or CUDA) or "triton" (one fused pass, CUDA only) must be named. `fast_accum` lets the GPU keep partial
    sums in reduced precision. `measure` records events around each part, read through `seconds()`.
    Whatever the hardware, dtypes, strides or alignment do not allow raises `UnsupportedError`; nothing falls back.
    """

    def __init__(
        self,
        mode: str,
        *,
        activation_quantizer: str | None = None,
        fast_accum: bool = False,
        restorer: str | None = None,
        measure: bool = False,
    ) -> None:
        self.mode = _choice(RowFP8Mode, mode, "mode")
        if self.mode is RowFP8Mode.W8A8:
            if restorer is not None:
                raise ContractError("restorer belongs to mode 'weight-only': leave it out")
            self.row_kernels = _choice(RowKernels, activation_quantizer, "activation_quantizer")
        else:
            if activation_quantizer is not None or fast_accum is True:
                raise ContractError("activation_quantizer and fast_accum belong to mode 'w8a8': leave them out")
            self.row_kernels = _choice(RowKernels, "torch" if restorer is None else restorer, "restorer")
        self.fast_accum = flag_argument("fast_accum", fast_accum)
        self._torch = self.row_kernels is RowKernels.TORCH
        self.counters = RowFP8Counters()
        self._timer = ScopeTimer(flag_argument("measure", measure))

    def linear(
        self,
        values: torch.Tensor,
        codes: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """values [..., in] (at least 2-D; leading dimensions are flattened, rows may be strided), codes [out, in]
        E4M3, scales [out, 1] float32, bias [out] -> [..., out] in the values' dtype, which "w8a8" requires to be BF16.
        `out` [rows, out] receives the result where it is given.

        No rows give no rows. A row with NaN or infinity gives a non-finite row and leaves the others alone.
        """
        for name, value in (("values", values), ("codes", codes), ("scales", scales), ("bias", bias), ("out", out)):
            if value is not None or name in ("values", "codes", "scales"):
                tensor_argument(name, value)
        if codes.is_meta or scales.is_meta:
            raise ContractError("the FP8 weight is still on meta: a loader must fill codes and scales before use")
        check_weight(codes, scales)
        if values.ndim < 2 or values.shape[-1] != codes.shape[1]:
            raise ContractError(f"values {tuple(values.shape)} do not end in the weight's {codes.shape[1]} inputs")
        if values.device != codes.device:
            raise ContractError(f"values are on {values.device}, the weight is on {codes.device}: move one of them")
        flat = values if values.ndim == 2 else values.reshape(-1, values.shape[-1])
        if self.mode is RowFP8Mode.WEIGHT_ONLY:
            result = self._weight_only(flat, codes, scales, bias, out)
        else:
            if values.dtype != torch.bfloat16:
                raise UnsupportedError(f"w8a8 takes bfloat16 values, not {values.dtype}: run the model in bfloat16")
            result = self.linear_rows(self.quantise(flat), codes, scales, bias, out=out)
        return result.view(*values.shape[:-1], codes.shape[0])

    def quantise(self, values: torch.Tensor) -> Fp8Rows:
        """values [rows, in] -> FP8 rows, by the named quantiser."""
        self.counters.rows_quantised += values.shape[0]
        with self._timer.scope("quantise", values.device):
            return quantise_rows(values) if self._torch else _triton_rows().quantise_rows_triton(values)

    def linear_rows(
        self,
        rows: Fp8Rows,
        codes: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Mode "w8a8" over rows that are quantised already: [rows, in] -> BF16 [rows, out]."""
        check_scaled_gemm(codes)
        self.counters.w8a8_calls += 1
        self.counters.rows += rows.codes.shape[0]
        if out is None:
            out = torch.empty(rows.codes.shape[0], codes.shape[0], dtype=torch.bfloat16, device=codes.device)
        if rows.codes.shape[0] == 0:
            return out
        with self._timer.scope("gemm", codes.device):
            return torch._scaled_mm(
                rows.codes,
                codes.t(),
                scale_a=rows.scales,
                scale_b=scales.t(),
                bias=bias,
                out_dtype=torch.bfloat16,
                use_fast_accum=self.fast_accum,
                out=out,
            )

    def seconds(self) -> dict[str, float]:
        """Seconds by part ("quantise", "restore", "gemm"), after the caller synchronised the device."""
        return self._timer.seconds()

    def _weight_only(
        self,
        values: torch.Tensor,
        codes: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        if values.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise UnsupportedError(f"weight-only FP8 takes bfloat16, float16 or float32 values, not {values.dtype}")
        self.counters.weight_only_calls += 1
        self.counters.rows += values.shape[0]
        with self._timer.scope("restore", values.device):
            restore = restore_rows if self._torch else _triton_rows().restore_rows_triton
            weight = restore(codes, scales, values.dtype)
        with self._timer.scope("gemm", values.device):
            if out is None:
                return F.linear(values, weight, bias)
            if bias is None:
                return torch.mm(values, weight.t(), out=out)
            return torch.addmm(bias, values, weight.t(), out=out)


def check_weight(codes: torch.Tensor, scales: torch.Tensor) -> None:
    """Codes [out, in] E4M3 and scales [out, 1] float32, both contiguous and on one device."""
    if codes.dtype != torch.float8_e4m3fn or scales.dtype != torch.float32:
        raise UnsupportedError(f"FP8 weights are float8_e4m3fn with float32 scales, not {codes.dtype}, {scales.dtype}")
    if codes.ndim != 2 or scales.shape != (codes.shape[0], 1):
        raise ContractError(f"codes {tuple(codes.shape)} need scales [{codes.shape[0]}, 1], not {tuple(scales.shape)}")
    if not (codes.is_contiguous() and scales.is_contiguous()):
        raise UnsupportedError("FP8 codes and scales must be contiguous: call .contiguous() once at load")
    if codes.device != scales.device:
        raise ContractError(f"codes are on {codes.device}, scales on {scales.device}: move one of them")


def check_scaled_gemm(codes: torch.Tensor) -> None:
    """Raise `UnsupportedError` where torch's row-scaled GEMM is not admitted for this weight."""
    if codes.shape[0] % SCALED_GEMM_ALIGNMENT or codes.shape[1] % SCALED_GEMM_ALIGNMENT:
        raise UnsupportedError(
            f"w8a8 needs both weight dimensions to be multiples of {SCALED_GEMM_ALIGNMENT}, not {tuple(codes.shape)}: "
            "leave this layer in bf16 or fp8-weight-only"
        )
    check_device(codes.device)


def check_device(device: torch.device) -> None:
    """Raise `UnsupportedError` where W8A8 is not admitted."""
    if not admits(device):
        raise UnsupportedError(
            f"w8a8 is admitted on compute capability 9.0 and 12.0, not on {device}: use fp8-weight-only or bf16"
        )


def admits(device: torch.device) -> bool:
    """A CPU, or a GPU of an admitted capability."""
    return device.type != "cuda" or _capability(device) in ADMITTED_CAPABILITIES


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _triton_rows() -> ModuleType:
    try:
        from vflash_adapters.linear import triton_rows
    except ModuleNotFoundError as error:
        raise UnsupportedError("the triton row kernels need Triton: install vflash[gpu], or name 'torch'") from error
    return triton_rows


def _choice(choices: type[_Choice], value: str | None, field: str) -> _Choice:
    for choice in choices:
        if choice.value == value:
            return choice
    known = ", ".join(repr(choice.value) for choice in choices)
    raise ContractError(f"{field} must be one of {known}, not {value!r}")
