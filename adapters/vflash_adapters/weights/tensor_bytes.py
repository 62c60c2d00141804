"""Tensors as bytes and bytes as tensors, without a copy where alignment allows."""

from __future__ import annotations

import torch

from vflash_ports.errors import ContractError
from vflash_ports.weights import TensorSpec


def typed_view(payload: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """`payload` uint8 [byte_count] as the spec's dtype and shape; a misaligned payload is copied first."""
    if payload.data_ptr() % spec.dtype.itemsize:
        payload = payload.clone()
    return payload.view(spec.dtype).view(spec.shape)


def empty_tensor(spec: TensorSpec) -> torch.Tensor:
    return torch.empty(spec.shape, dtype=spec.dtype)


def byte_view(out: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The bytes of a caller's tensor as uint8 [byte_count]; raises `ContractError` if it cannot take `spec`."""
    if out.device.type != "cpu" or not out.is_contiguous():
        raise ContractError(f"{spec.name}: the tensor to fill must be a contiguous CPU tensor")
    if out.dtype != spec.dtype or tuple(out.shape) != spec.shape:
        raise ContractError(
            f"{spec.name}: is {spec.dtype} {list(spec.shape)}, but the tensor to fill is {out.dtype} {list(out.shape)}"
        )
    return out.detach().reshape(-1).view(torch.uint8)
