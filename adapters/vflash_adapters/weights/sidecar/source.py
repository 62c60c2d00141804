"""Weights read through a compressed sidecar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from vflash_adapters.weights.buffered_source import OpenFile
from vflash_adapters.weights.byte_file import choose_file
from vflash_adapters.weights.checkpoint import Checkpoint, read_checkpoint
from vflash_adapters.weights.owned_reader import OwnedReader
from vflash_adapters.weights.read_workers import ReadWorkers, checked_count
from vflash_adapters.weights.sidecar.components import component_folder
from vflash_adapters.weights.sidecar.merges import MergeChoice, make_merge
from vflash_adapters.weights.sidecar.payload import SidecarPayload
from vflash_adapters.weights.sidecar.sidecar_manifest import SidecarManifest, read_manifest
from vflash_ports.weights import TensorSpec


class SidecarWeights:
    """A `WeightSource` that reads headers from the original and payloads from the sidecar prepared from it.

    Faster than the original only where the disk is slower than the processors can decode (docs/weights.md has the
    rule); from the page cache the original wins, so nothing chooses a sidecar by itself.
    """

    def __init__(
        self,
        path: Path,
        sidecar: Path,
        *,
        read_workers: int = 4,
        merge: MergeChoice = MergeChoice.NUMBA,
        open_file: OpenFile = choose_file,
    ) -> None:
        self._path = path
        self._sidecar = sidecar
        self._read_workers = checked_count(read_workers)
        self._merge = make_merge(merge)
        self._open_file = open_file

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return read_checkpoint(self._path)

    @cached_property
    def _folder(self) -> Path:
        return component_folder(self._sidecar, self._path)

    @cached_property
    def _manifest(self) -> SidecarManifest:
        checkpoint = self._checkpoint
        return read_manifest(self._folder, checkpoint)

    def specs(self) -> Mapping[str, TensorSpec]:
        """Also checks that the sidecar was prepared from these very files."""
        assert self._manifest
        return self._checkpoint.specs

    @contextmanager
    def open(self) -> Iterator[OwnedReader]:
        payload = SidecarPayload(
            self._checkpoint,
            self._manifest,
            self._folder,
            ReadWorkers(self._read_workers),
            self._merge,
            self._open_file,
        )
        reader = OwnedReader(self._checkpoint, payload)
        try:
            yield reader
            reader.check_unchanged()
        finally:
            reader.close()
