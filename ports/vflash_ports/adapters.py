"""Adapters (LoRA): low-rank residuals beside a base that is never changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from vflash_ports.weights import TensorSpec

if TYPE_CHECKING:
    import torch


@frozen(kw_only=True, eq=False)
class LowRank:
    """The residual of one linear: out += scale * (up @ (down @ x)). `down` [rank, in], `up` [out, rank], one dtype."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float


@frozen(kw_only=True)
class AdaptedModule:
    """One stored pair, for the receipt: `scale` = alpha / rank * strength, as applied to every target."""

    stored_name: str
    targets: tuple[str, ...]
    rank: int
    alpha: float
    scale: float


@frozen(kw_only=True)
class AdapterReport:
    """What was loaded and by which rules. `alpha_source`: "per-key", "metadata", "known-file" or "option"."""

    path: Path
    family: str
    component: str | None
    alpha_source: str
    qkv_order: str
    strength: float
    modules: tuple[AdaptedModule, ...]
    unmatched: tuple[str, ...]


@frozen(kw_only=True, eq=False)
class Adapter:
    """Residuals by canonical module name (`transformer_blocks.0.attn.to_q`, ...), none of them partial."""

    modules: Mapping[str, LowRank]
    report: AdapterReport


class AdapterLoader(Protocol):
    """Normalises an adapter file of any known family.

    `base`: the canonical specs of the checkpoint component named `component` that will be adapted. Both methods raise
    `CheckpointError` unless every tensor of the file is used and every target exists with fitting shapes.
    """

    def inspect(self, path: Path, base: Mapping[str, TensorSpec], *, component: str) -> AdapterReport:
        """What `load` would do, from headers and alpha scalars alone."""
        ...

    def load(self, path: Path, base: Mapping[str, TensorSpec], *, component: str) -> Adapter: ...
