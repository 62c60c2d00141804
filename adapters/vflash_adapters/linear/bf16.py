"""The plain linear: weights stay in the checkpoint's dtype and the framework's own GEMM runs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from attrs import frozen

from vflash_ports.errors import UnsupportedError
from vflash_ports.linear import ActivationFormat, BoundLinear, Fp8Rows, PackedLinear


class Bf16Linear:
    """`bf16`: no quantisation. The GEMM runs in the weight's own dtype, so a float32 checkpoint runs in float32."""

    name = "bf16"

    def check(self, device: torch.device, dtype: torch.dtype) -> None:
        """Runs wherever torch does."""

    def pack(self, weight: torch.Tensor) -> PackedLinear:
        """`weight` [out, in], kept as it is. Raises `UnsupportedError` for a dtype no GEMM takes."""
        if weight.dtype not in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            raise UnsupportedError(f"linear 'bf16' takes floating-point weights, not {weight.dtype}: load another file")
        return PackedLinear(weight=weight)

    def bind(self, packed: PackedLinear) -> BoundLinear:
        """A GEMM over `packed.weight` itself."""
        if packed.scales is not None:
            raise UnsupportedError("linear 'bf16' cannot run quantised weights: choose 'fp8-weight-only' or 'w8a8'")
        return _BoundDense(weight=packed.weight)


@frozen(kw_only=True, eq=False)
class _BoundDense:
    weight: torch.Tensor
    consumes = ActivationFormat.DENSE

    def __call__(self, values: torch.Tensor | Fp8Rows, *, out: torch.Tensor | None = None) -> torch.Tensor:
        assert not isinstance(values, Fp8Rows), "a dense linear was fed FP8 rows: emit what it consumes"
        if out is None:
            return F.linear(values, self.weight)
        return torch.mm(values, self.weight.t(), out=out)
