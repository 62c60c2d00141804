"""Checkpoint families that exist, are recognised, and are not read: each by its name and with the way out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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


def _item_bytes(count: int) -> Callable[[Specs], bool]:
    """Any block matrix whose elements have `count` bytes."""
    return lambda specs: any(
        spec.dtype.itemsize == count and len(spec.shape) == 2 and "blocks." in name for name, spec in specs.items()
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
    Family("scaled FP8 or INT8 (per-channel scales)", _suffix(".weight_scale", ".scale_weight"), _UNQUANTISED),
    Family("Keyless (queries and values only)", _part(".attn.qv_proj."), "use the ordinary checkpoint"),
    Family("VDN (linear attention branch)", _part("linear_branch."), "use the base checkpoint without the branch"),
    Family("FastH3 (VSA gates)", _part("to_gate_compress", ".set_weight"), "use the base checkpoint"),
    Family("8-bit weights without scales", _item_bytes(1), _UNQUANTISED),
)


def refuse_known_families(specs: Specs, label: str) -> None:
    """Raises `CheckpointError` naming the family, if `specs` belong to one that is not read."""
    for family in REFUSED_FAMILIES:
        if family.found(specs):
            raise CheckpointError(f"{label}: this is {family.name}, which is not read; {family.cure}")
