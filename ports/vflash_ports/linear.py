"""Linear execution: a weight is packed once at load, bound once to a callable, then called hot."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import torch


class ActivationFormat(StrEnum):
    """What a bound linear reads best, so that the kernel before it can emit exactly that."""

    DENSE = "dense"
    FP8_ROWS = "fp8-rows"


@frozen(kw_only=True, eq=False)
class Fp8Rows:
    """Activation rows in E4M3: `codes` [rows, k] float8_e4m3fn, `scales` [rows, 1] float32; value = code * scale."""

    codes: torch.Tensor
    scales: torch.Tensor


@frozen(kw_only=True, eq=False)
class PackedLinear:
    """A weight as stored and moved: `weight` [out, in]; `scales` [out, 1] float32 for FP8 codes, else None."""

    weight: torch.Tensor
    scales: torch.Tensor | None = None


class BoundLinear(Protocol):
    """`values` [rows, in] -> [rows, out] in the model's dtype.

    Takes a dense tensor always, and `Fp8Rows` if it `consumes` them. `out` [rows, out], contiguous, receives the result
    and is returned: a caller that works in chunks of rows fills one tensor.
    """

    @property
    def consumes(self) -> ActivationFormat: ...

    def __call__(self, values: torch.Tensor | Fp8Rows, *, out: torch.Tensor | None = None) -> torch.Tensor: ...


class LinearExecution(Protocol):
    """BF16, weight-only FP8 or W8A8. An unusable device or dtype raises `UnsupportedError`; nothing falls back."""

    @property
    def name(self) -> str: ...

    def check(self, device: torch.device, dtype: torch.dtype) -> None:
        """Raises `UnsupportedError`, with the cure, before any weight is read, if this machine cannot run it."""
        ...

    def pack(self, weight: torch.Tensor) -> PackedLinear:
        """The stored form of a [out, in] weight, made once at load (FP8 adapters quantise here).

        A meta tensor gives the stored form's shapes and dtypes without data.
        """
        ...

    def bind(self, packed: PackedLinear) -> BoundLinear:
        """A callable over `packed`'s own storage, never a copy: a ring may refill that storage between calls."""
        ...
