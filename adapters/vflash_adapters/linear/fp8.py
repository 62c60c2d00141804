"""The two FP8 linear executions of the denoiser, over `RowFP8Execution`."""

from __future__ import annotations

import torch
from attrs import frozen

from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.linear.row_fp8 import (
    RowFP8Execution,
    RowKernels,
    check_device,
    check_scaled_gemm,
    check_weight,
)
from vflash_adapters.linear.row_quantiser import quantise_rows
from vflash_ports.errors import CheckpointError, UnsupportedError
from vflash_ports.linear import ActivationFormat, BoundLinear, Fp8Rows, PackedLinear


class Fp8WeightOnlyLinear:
    """`fp8-weight-only`: half the weight bytes; the weight is restored to the values' dtype at every call."""

    name = "fp8-weight-only"

    def __init__(self, *, row_kernels: str = "torch") -> None:
        self.execution = RowFP8Execution("weight-only", restorer=row_kernels)

    def check(self, device: torch.device, dtype: torch.dtype) -> None:
        """Runs wherever torch does with the torch row kernels."""
        _check_row_kernels(self.execution, device)

    def pack(self, weight: torch.Tensor) -> PackedLinear:
        """[out, in] floating point -> E4M3 codes and row scales. A weight stored in FP8 is bound without packing."""
        return pack_rows(weight)

    def bind(self, packed: PackedLinear) -> BoundLinear:
        """FP8 rows; a matrix that a checkpoint left dense beside its FP8 ones runs as it is."""
        if packed.scales is None:
            return Bf16Linear().bind(packed)
        check_weight(packed.weight, packed.scales)
        return _BoundWeightOnly(execution=self.execution, codes=packed.weight, scales=packed.scales)


class W8A8Linear:
    """`w8a8`: activations are quantised by row as well and multiplied in FP8; the model runs in BF16.

    `row_kernels`, "torch" or "triton", quantise rows that arrive dense; a kernel that emits FP8 rows makes them idle.
    """

    name = "w8a8"

    def __init__(self, *, row_kernels: str, fast_accum: bool = False) -> None:
        self.execution = RowFP8Execution("w8a8", activation_quantizer=row_kernels, fast_accum=fast_accum)

    def check(self, device: torch.device, dtype: torch.dtype) -> None:
        """BF16 models; the GPU must be admitted, and the fused quantiser needs one."""
        if dtype != torch.bfloat16:
            raise UnsupportedError(f"linear 'w8a8' runs bfloat16 models, not {dtype}: choose dtype bfloat16")
        check_device(device)
        _check_row_kernels(self.execution, device)

    def pack(self, weight: torch.Tensor) -> PackedLinear:
        """[out, in] BF16 -> E4M3 codes and row scales. `UnsupportedError` for what torch cannot multiply there."""
        if weight.dtype != torch.bfloat16:
            raise UnsupportedError(f"linear 'w8a8' runs a bfloat16 model, not {weight.dtype}: load it in bfloat16")
        packed = pack_rows(weight)
        check_scaled_gemm(packed.weight)
        return packed

    def bind(self, packed: PackedLinear) -> BoundLinear:
        """FP8 rows; a matrix that a checkpoint left dense beside its FP8 ones runs as it is."""
        if packed.scales is None:
            return Bf16Linear().bind(packed)
        check_weight(packed.weight, packed.scales)
        check_scaled_gemm(packed.weight)
        return _BoundW8A8(execution=self.execution, codes=packed.weight, scales=packed.scales)


def default_row_kernels(choice: str, device: torch.device) -> str:
    """`auto` is triton on CUDA and torch elsewhere; a named choice stays as it is."""
    if choice != "auto":
        return choice
    return "triton" if device.type == "cuda" else "torch"


def pack_rows(weight: torch.Tensor, what: str = "the weight") -> PackedLinear:
    """Quantise a [out, in] weight by row; one with NaN or infinity is refused under the name `what`."""
    if not weight.is_floating_point() or weight.dtype.itemsize < 2:
        raise UnsupportedError(f"{what} is {weight.dtype}: FP8 packing starts from a full-width float")
    rows = quantise_rows(weight)
    if not weight.is_meta and not bool(rows.scales.isfinite().all()):
        raise CheckpointError(f"{what} holds NaN or infinity and cannot be quantised: check the checkpoint")
    return PackedLinear(weight=rows.codes, scales=rows.scales)


@frozen(kw_only=True, eq=False)
class _BoundWeightOnly:
    execution: RowFP8Execution
    codes: torch.Tensor
    scales: torch.Tensor
    consumes = ActivationFormat.DENSE

    def __call__(self, values: torch.Tensor | Fp8Rows, *, out: torch.Tensor | None = None) -> torch.Tensor:
        assert not isinstance(values, Fp8Rows), "weight-only FP8 was fed FP8 rows: emit what it consumes"
        return self.execution.linear(values, self.codes, self.scales, out=out)


@frozen(kw_only=True, eq=False)
class _BoundW8A8:
    execution: RowFP8Execution
    codes: torch.Tensor
    scales: torch.Tensor
    consumes = ActivationFormat.FP8_ROWS

    def __call__(self, values: torch.Tensor | Fp8Rows, *, out: torch.Tensor | None = None) -> torch.Tensor:
        if isinstance(values, Fp8Rows):
            return self.execution.linear_rows(values, self.codes, self.scales, out=out)
        return self.execution.linear(values, self.codes, self.scales, out=out)


def _check_row_kernels(execution: RowFP8Execution, device: torch.device) -> None:
    if execution.row_kernels is RowKernels.TRITON and device.type != "cuda":
        raise UnsupportedError(f"the triton FP8 row kernels need CUDA, not {device}: choose fp8_kernels torch")
