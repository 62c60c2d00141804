"""Which writer made an adapter file, and how its fused QKV rows therefore lie."""

from __future__ import annotations

from collections.abc import Mapping

from vflash_adapters.weights.layouts.recipes import QkvOrder
from vflash_adapters.weights.lora.adapter_keys import KOHYA_PREFIX, PEFT_PREFIX, AdapterKeys
from vflash_ports.errors import CheckpointError

QKV_METADATA = "qkv_layout"


def family_name(keys: AdapterKeys, namings: set[str]) -> str:
    """A name for the receipt: the writer's key style over the module names it used."""
    writer = "kohya" if KOHYA_PREFIX in keys.prefixes or keys.style == "lora_down" else "peft"
    if "native-fused" in namings and keys.infix is not None and not keys.prefixes:
        writer = "diffsynth"
    elif "diffusion_model." in keys.prefixes or "model.diffusion_model." in keys.prefixes:
        writer = "comfyui"
    names = "native" if any(naming.startswith("native") for naming in namings) else "diffusers"
    return f"{writer}/{names}"


def fused_order(
    keys: AdapterKeys, is_fused: bool, metadata: Mapping[str, str], option: QkvOrder | None, label: str
) -> QkvOrder:
    """Row order of fused `up` matrices.

    The file's metadata decides, then the writer: DiffSynth (PEFT's infix over bare native names) trains on the
    released, interleaved rows; all others on grouped rows. PEFT's own wrapper over native names tells nothing, so the
    caller must. Raises `CheckpointError` there, and if the caller contradicts the file.
    """
    if not is_fused:
        return QkvOrder.GROUPED  # nothing is fused: any order reads the same
    known = _from_metadata(metadata, label) or _from_writer(keys)
    if known is not None and option not in (None, known):
        raise CheckpointError(f"{label}: its QKV rows are {known}; drop --adapter-qkv-order {option}")
    order = known or option
    if order is None:
        raise CheckpointError(
            f"{label}: adapts fused QKV projections and does not say how their rows lie; pass --adapter-qkv-order "
            "interleaved (trained on the released files) or grouped (trained on ComfyUI files)"
        )
    return order


def _from_metadata(metadata: Mapping[str, str], label: str) -> QkvOrder | None:
    value = metadata.get(QKV_METADATA)
    if value is None:
        return None
    if value not in list(QkvOrder):
        raise CheckpointError(f"{label}: metadata {QKV_METADATA} must be {' or '.join(QkvOrder)}, not {value!r}")
    return QkvOrder(value)


def _from_writer(keys: AdapterKeys) -> QkvOrder | None:
    if PEFT_PREFIX in keys.prefixes:
        return None
    if keys.infix is not None and not keys.prefixes:
        return QkvOrder.INTERLEAVED
    return QkvOrder.GROUPED
