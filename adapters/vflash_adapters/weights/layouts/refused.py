"""Checkpoint families that exist, are recognised, and are not read: each by its name and with the way out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from attrs import frozen

from vflash_ports.errors import CheckpointError
from vflash_ports.weights import TensorSpec

Specs = Mapping[str, TensorSpec]


@frozen
class Family:
    """`found` looks at names, dtypes and shapes only."""

    name: str
    found: Callable[[Specs], bool]
    cure: str


def _suffix(*suffixes: str) -> Callable[[Specs], bool]:
    return lambda specs: any(name.endswith(suffixes) for name in specs)


def _part(*parts: str) -> Callable[[Specs], bool]:
    return lambda specs: any(part in name for name in specs for part in parts)


def _has_row_scale(specs: Specs, name: str) -> bool:
    """E4M3 codes with one float32 scale for each output row: the one quantised form that is read."""
    codes, scale = specs[name], specs.get(f"{name}_scale")
    rows = codes.shape[:1]
    return (
        codes.dtype == torch.float8_e4m3fn
        and scale is not None
        and scale.dtype == torch.float32
        and scale.shape in (rows, (*rows, 1))
    )


def _scaled_otherwise(specs: Specs) -> bool:
    """A scale that is not one number for each row of an E4M3 weight."""
    names = [name for name in specs if name.endswith((".weight_scale", ".scale_weight"))]
    weights = [name.removesuffix("_scale") for name in names]
    return any(not (weight in specs and _has_row_scale(specs, weight)) for weight in weights)


def _bare_bytes(specs: Specs) -> bool:
    """Any block matrix of 8-bit elements without row scales."""
    return any(
        spec.dtype.itemsize == 1 and len(spec.shape) == 2 and "blocks." in name and not _has_row_scale(specs, name)
        for name, spec in specs.items()
    )


_UNQUANTISED = "use the BF16 checkpoint; `linear` settings quantise it at load"
REFUSED_FAMILIES = (
    Family("an adapter (LoRA)", _part(".lora_A.", ".lora_B.", ".lora_down.", ".lora_up."), "pass it as the adapter"),
    Family("ComfyUI W4A8", _suffix(".weight_s_rel", ".weight_s_channel"), _UNQUANTISED),
    Family("ComfyUI AWQ", _suffix(".pre_quant_scale"), _UNQUANTISED),
    Family("NVFP4", _suffix(".weight_scale_2", ".input_scale_2"), _UNQUANTISED),
    Family(
        "ComfyUI quantised (INT8 convrot, FP8 scaled or NVFP4)", _suffix(".comfy_quant", ".scaled_fp8"), _UNQUANTISED
    ),
    Family("bitsandbytes", _part(".quant_state.", ".absmax"), _UNQUANTISED),
    Family("quanto", _suffix(".weight._data", ".weight._scale"), _UNQUANTISED),
    Family("scaled FP8 or INT8, other than E4M3 with one scale a row", _scaled_otherwise, _UNQUANTISED),
    Family("Keyless (queries and values only)", _part(".attn.qv_proj."), "use the ordinary checkpoint"),
    Family("VDN (linear attention branch)", _part("linear_branch."), "use the base checkpoint without the branch"),
    Family("FastH3 (VSA gates)", _part("to_gate_compress", ".set_weight"), "use the base checkpoint"),
    Family("8-bit weights without scales", _bare_bytes, _UNQUANTISED),
)


def refuse_known_families(specs: Specs, label: str) -> None:
    """Raises `CheckpointError` naming the family, if `specs` belong to one that is not read."""
    for family in REFUSED_FAMILIES:
        if family.found(specs):
            raise CheckpointError(f"{label}: this is {family.name}, which is not read; {family.cure}")
