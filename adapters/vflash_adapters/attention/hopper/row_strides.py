"""How rows must lie for the kernels for compute capability 9.0, which copy 16 bytes at a time."""

from __future__ import annotations

import torch

from vflash_ports.errors import ContractError

ALIGNMENT = 16
"""Bytes that addresses and strides are multiples of."""


def check_rows(what: str, cure: str, *, heads_beside: bool, **tensors_SHD: torch.Tensor) -> None:
    """Raises `ContractError` for `what`, naming the tensor and its strides, with the `cure`, where one lies otherwise.

    16-bit values of a head one after another, rows and heads at multiples of 16 bytes; with `heads_beside` the heads of
    a row one after another, too.
    """
    for name, x_SHD in tensors_SHD.items():
        if not _aligned(x_SHD) or (heads_beside and x_SHD.stride(1) != x_SHD.shape[2]):
            raise ContractError(
                f"{what}: the values of a head must lie one after another, {'heads side by side, ' * heads_beside}"
                f"rows and heads at multiples of {ALIGNMENT} bytes, but {name} {tuple(x_SHD.shape)} has strides "
                f"{x_SHD.stride()} and starts {x_SHD.data_ptr() % ALIGNMENT} bytes off; make it contiguous, or {cure}"
            )


def _aligned(x_SHD: torch.Tensor) -> bool:
    row_stride, head_stride, last = x_SHD.stride()
    off = (row_stride * x_SHD.element_size() | head_stride * x_SHD.element_size() | x_SHD.data_ptr()) % ALIGNMENT
    return last == 1 and off == 0
