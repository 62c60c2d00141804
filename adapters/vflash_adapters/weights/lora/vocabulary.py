"""Every name under which a module of this checkpoint may appear in an adapter file.

Writers flatten dots to underscores wholly or in part, so both sides are compared with every dot flattened; a name is
matched as a whole, never split at an underscore.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from vflash_adapters.weights.layouts.native_names import (
    BLOCK_MODULES,
    FUSED_QKV,
    GATE_VALUE,
    OUTER_MODULES,
    QKV,
    STACKS,
    VALUE_GATE,
)
from vflash_adapters.weights.layouts.row_order import IDENTITY, SWAPPED_HALVES, RowOrder, fused_qkv
from vflash_ports.weights import TensorSpec

SPLIT_QKV = ("attn.q_proj", "attn.k_proj", "attn.v_proj")


@frozen
class Target:
    """A canonical module, and which rows of the stored `up` matrix are its own."""

    module: str
    rows: RowOrder = IDENTITY


@frozen
class Entry:
    targets: tuple[Target, ...]
    naming: str


def flatten(module: str) -> str:
    return module.replace(".", "_")


def build_vocabulary(base: Mapping[str, TensorSpec], interleaved: bool) -> dict[str, Entry]:
    """Flattened name -> targets, for every matrix of `base` under its canonical and its native names."""
    modules = [name.removesuffix(".weight") for name, spec in base.items() if len(spec.shape) == 2]
    vocabulary = {flatten(module): Entry((Target(module),), "canonical") for module in modules}
    for module in modules:
        vocabulary.update(_native_entries(module, base, interleaved))
    return vocabulary


def _native_entries(module: str, base: Mapping[str, TensorSpec], interleaved: bool) -> dict[str, Entry]:
    for native, canonical in OUTER_MODULES.items():
        if module == canonical:
            return {flatten(native): Entry((Target(module),), "native")}
    for native_stack, canonical_stack in STACKS.items():
        if module.startswith(f"{canonical_stack}."):
            index, _, inner = module.removeprefix(f"{canonical_stack}.").partition(".")
            return _block_entries(f"{native_stack}.{index}.", module.removesuffix(inner), inner, base, interleaved)
    return {}


def _block_entries(
    native: str, canonical: str, inner: str, base: Mapping[str, TensorSpec], interleaved: bool
) -> dict[str, Entry]:
    entries = {
        flatten(native + own): Entry((Target(canonical + inner),), "native")
        for own, name in BLOCK_MODULES.items()
        if name == inner
    }
    if inner == VALUE_GATE:
        entries[flatten(native + GATE_VALUE)] = Entry((Target(canonical + inner, SWAPPED_HALVES),), "native")
    if inner in QKV:
        entries[flatten(native + SPLIT_QKV[QKV.index(inner)])] = Entry((Target(canonical + inner),), "native-split")
    if inner == QKV[0]:
        heads = _heads(canonical, base) if interleaved else None
        targets = tuple(Target(canonical + name, fused_qkv(part, heads)) for part, name in enumerate(QKV))
        entries[flatten(native + FUSED_QKV)] = Entry(targets, "native-fused")
    return entries


def _heads(block: str, base: Mapping[str, TensorSpec]) -> int:
    return base[f"{block}{QKV[0]}.weight"].shape[0] // base[f"{block}attn.norm_q.weight"].shape[0]
