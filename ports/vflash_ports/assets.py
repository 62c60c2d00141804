"""Compiled assets: tensors laid out for loading, under one sealed manifest, published whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vflash_ports.observer import Observer
from vflash_ports.weights import WeightSource

if TYPE_CHECKING:
    import torch


class AssetWriter(Protocol):
    """One publication in the making. Nothing of it is visible until the scope ends well after `seal`."""

    def add(self, stem: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write one file of named CPU tensors; names are unique over all files."""
        ...

    def seal(self, body: Mapping[str, Any]) -> None:
        """Write the manifest: `body` (JSON values) beside the files' sizes and digests. Last of all, once."""
        ...


class CompiledAssets(Protocol):
    """A published directory, opened and checked against its own manifest and receipt."""

    @property
    def body(self) -> Mapping[str, Any]:
        """What `seal` was given."""
        ...

    @property
    def source(self) -> WeightSource:
        """All tensors by name."""
        ...

    def check_unchanged(self) -> None:
        """Compare every file's stamp with the receipt; no hashing. Raises `CheckpointError` naming the file."""
        ...


class AssetStore(Protocol):
    def identify(self, path: Path, *, hash_content: bool, observer: Observer) -> Mapping[str, Any]:
        """What binds assets to the weight file or component at `path`: names, sizes, times, header digests, and the
        content's digests if they were asked for, else null. Progress in bytes as stage "hash"."""
        ...

    def create(self, output: Path) -> AbstractContextManager[AssetWriter]:
        """Begin the new directory `output`; an existing one is refused, a failed scope leaves nothing."""
        ...

    def open(self, path: Path) -> CompiledAssets:
        """Raises `CheckpointError` for a directory that is not exactly what was published."""
        ...
