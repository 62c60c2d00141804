"""Weight sources: names and specs without reading, then a scoped read that yields tensors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import torch


@frozen(kw_only=True)
class TensorSpec:
    """One stored tensor: its checkpoint name, dtype, shape and bytes, known from the header alone."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    byte_count: int


class WeightReader(Protocol):
    """The open scope of a `WeightSource`."""

    def get_tensor(self, name: str) -> torch.Tensor:
        """The tensor on the CPU; it stays valid after the scope. Raises `CheckpointError` for an unknown name."""
        ...

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Fill `out` (contiguous CPU tensor of the spec's dtype and shape, pinned or not), without a second copy."""
        ...


class WeightSource(Protocol):
    """A checkpoint component (one file, or a folder of shards with an index). Every adapter yields the same bits."""

    def specs(self) -> Mapping[str, TensorSpec]:
        """All tensors by name. Headers are validated here; no payload is read."""
        ...

    def open(self) -> AbstractContextManager[WeightReader]:
        """Open for reading; files that changed since `specs()` raise `CheckpointError`."""
        ...


class WeightOpener(Protocol):
    """How a path (safetensors file, index file, or component folder) becomes a `WeightSource`."""

    def __call__(self, path: Path) -> WeightSource: ...
