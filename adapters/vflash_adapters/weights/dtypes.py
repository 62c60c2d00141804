"""Names of dtypes in a safetensors header, their width and what torch calls them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

TORCH_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "BOOL": torch.bool,
        "U8": torch.uint8,
        "I8": torch.int8,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "F8_E8M0": torch.float8_e8m0fnu,
        "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
        "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
        "U16": torch.uint16,
        "I16": torch.int16,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "U32": torch.uint32,
        "I32": torch.int32,
        "F32": torch.float32,
        "U64": torch.uint64,
        "I64": torch.int64,
        "F64": torch.float64,
        "C64": torch.complex64,
    }
)
"""Stored name -> torch dtype, for every dtype whose elements are whole bytes."""

SUB_BYTE_DTYPES = frozenset({"F4", "F6_E2M3", "F6_E3M2"})
"""Legal in the format, but torch has no element of that size: refused by name."""

ITEM_BYTES: Mapping[str, int] = MappingProxyType({name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()})
