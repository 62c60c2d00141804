"""Canonical tensors from stored ones: every layout as a table of recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from attrs import frozen

from vflash_adapters.weights.layouts.native_names import (
    BLOCK_MODULES,
    COMFY_PREFIX,
    DROPPED,
    FUSED_QKV,
    GATE_VALUE,
    MODULATION_TABLE,
    OUTER_MODULES,
    QKV,
    VALUE_GATE,
    split_block,
)
from vflash_adapters.weights.layouts.row_order import IDENTITY, SWAPPED_HALVES, RowOrder, fused_qkv
from vflash_ports.errors import CheckpointError
from vflash_ports.weights import TensorSpec

Specs = Mapping[str, TensorSpec]


class QkvOrder(StrEnum):
    """How the rows of a fused QKV projection lie. Names and shapes are the same in both, so somebody must know."""

    INTERLEAVED = "interleaved"
    """Per head: q, k, v of head 0, then of head 1 (the original release)."""
    GROUPED = "grouped"
    """All q, all k, all v (ComfyUI exports)."""


@frozen
class Recipe:
    """One canonical tensor: `rows` of the stored tensor `source`."""

    source: str
    rows: RowOrder = IDENTITY


def is_native(specs: Specs) -> bool:
    """True for the original release's names, with or without ComfyUI's prefix."""
    return any(name.removeprefix(COMFY_PREFIX).endswith(f".{FUSED_QKV}.weight") for name in specs)


def native_recipes(specs: Specs, order: QkvOrder, label: str) -> dict[str, Recipe]:
    """Canonical name -> recipe for every tensor of a native checkpoint.

    Raises `CheckpointError` for a name that belongs to no known module, and for rows that do not divide.
    """
    recipes: dict[str, Recipe] = {}
    for source in specs:
        for canonical, recipe in _native_tensor(source, specs, order, label):
            if not recipe.rows.fits(specs[source].shape[0] if specs[source].shape else 1):
                raise CheckpointError(
                    f"{label}: {source} of {list(specs[source].shape)} does not divide into {recipe.rows}"
                )
            recipes[canonical] = recipe
    return recipes


def _native_tensor(source: str, specs: Specs, order: QkvOrder, label: str) -> Iterator[tuple[str, Recipe]]:
    native = source.removeprefix(COMFY_PREFIX)
    if native in DROPPED:
        return
    if native == MODULATION_TABLE:
        yield native, Recipe(source)
        return
    module, _, leaf = native.rpartition(".")
    block = split_block(module)
    if block is None and module in OUTER_MODULES:
        yield f"{OUTER_MODULES[module]}.{leaf}", Recipe(source)
    elif block is not None:
        yield from _block_tensor(source, block[0], block[1], leaf, specs, order, label)
    else:
        raise CheckpointError(f"{label}: tensor {source!r} belongs to no module of MiniMax-H3")


def _block_tensor(
    source: str, prefix: str, module: str, leaf: str, specs: Specs, order: QkvOrder, label: str
) -> Iterator[tuple[str, Recipe]]:
    if module == FUSED_QKV:
        heads = _heads(source, specs, label) if order is QkvOrder.INTERLEAVED else None
        for part, target in enumerate(QKV):
            yield f"{prefix}{target}.{leaf}", Recipe(source, fused_qkv(part, heads))
    elif module == GATE_VALUE:
        yield f"{prefix}{VALUE_GATE}.{leaf}", Recipe(source, SWAPPED_HALVES)
    elif module in BLOCK_MODULES:
        yield f"{prefix}{BLOCK_MODULES[module]}.{leaf}", Recipe(source)
    else:
        raise CheckpointError(f"{label}: tensor {source!r} belongs to no module of MiniMax-H3")


def _heads(source: str, specs: Specs, label: str) -> int:
    """Heads of a fused projection: its rows over three times the width of the q norm beside it."""
    norm = source.rpartition(FUSED_QKV)[0] + "attn.q_norm.weight"
    rows = specs[source].shape[0]
    width = specs[norm].shape[0] if norm in specs and len(specs[norm].shape) == 1 else 0
    if not width or rows % (3 * width):
        raise CheckpointError(
            f"{label}: the head width of {source} cannot be told, {norm} is missing or does not divide it"
        )
    return rows // (3 * width)
