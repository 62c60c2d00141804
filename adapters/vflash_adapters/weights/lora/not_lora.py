"""Adapter families that are no plain LoRA, or need more than one: recognised and refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from vflash_ports.errors import CheckpointError
from vflash_ports.weights import TensorSpec

Names = Mapping[str, TensorSpec]
Metadata = Mapping[str, str]


@frozen
class Family:
    name: str
    found: Callable[[Names, Metadata], bool]


def _key(*parts: str) -> Callable[[Names, Metadata], bool]:
    return lambda names, metadata: any(part in name for name in names for part in parts)


def _mark(*keys: str) -> Callable[[Names, Metadata], bool]:
    return lambda names, metadata: any(key in metadata for key in keys)


def _value(mark: str) -> Callable[[Names, Metadata], bool]:
    return lambda names, metadata: any(mark in value for value in metadata.values())


def _deeper_than_matrices(names: Names, metadata: Metadata) -> bool:
    return any(len(spec.shape) > 2 for spec in names.values())


REFUSED_ADAPTERS = (
    Family("HyperFlow (its own time embedder and gate)", _key("endpoint_time_embedder.")),
    Family("HyperFlow (its own sigmas)", _mark("hyperflow_sigmas", "hyperflow_gate")),
    Family("FastH3 (full-rank deltas and VSA gates)", _key(".set_weight", "to_gate_compress")),
    Family("FastH3 (fastvideo-lora-v2)", _value("fastvideo-lora")),
    Family("Acc (parallel decoding heads)", _mark("pdd_num_steps")),
    Family("VDN (linear attention branch)", _key("linear_branch.")),
    Family("Keyless", _key(".qv_proj.", "_qv_proj.")),
    Family("Keyless", _value("h3_keyless")),
    Family("FlashGen (its own sigma ladder)", _mark("base_schedule")),
    Family("an extracted difference (full rank)", _key(".diff", ".diff_b")),
    Family("DoRA", _key("dora_scale", "lora_magnitude_vector")),
    Family("LoHa", _key(".hada_w")),
    Family("LoKr", _key(".lokr_w")),
    Family("a LoRA with biases", _key(".lora_B.bias", ".lora_up.bias")),
    Family("quantised LoRA", _key(".weight_scale", ".comfy_quant", ".absmax")),
    Family("Acc or convolution adapters (more than two dimensions)", _deeper_than_matrices),
)


def refuse_other_adapters(names: Names, metadata: Metadata, label: str) -> None:
    """Raises `CheckpointError` naming the family."""
    for family in REFUSED_ADAPTERS:
        if family.found(names, metadata):
            raise CheckpointError(f"{label}: this is {family.name}, not a plain LoRA; it cannot be run as a residual")
