"""Weights straight from the page cache: the default source, and the one that owns no memory of its own."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import torch

from vflash_adapters.weights.checkpoint import Checkpoint, Location, close_all, open_shards, read_checkpoint
from vflash_adapters.weights.file_identity import check_unchanged
from vflash_adapters.weights.tensor_bytes import byte_view, empty_tensor, typed_view
from vflash_ports.errors import ContractError
from vflash_ports.weights import TensorSpec

_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # Python names it from 3.13 on


class MmapWeights:
    """A `WeightSource` over mapped files.

    Tensors are private views: writing to one never reaches the file. A file overwritten in place while mapped changes
    the tensors, and one cut short kills the process at the next touch (SIGBUS); no reader of mappings can prevent
    that, so identity is compared around every read, and the buffered source is the safe choice for unsteady disks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return read_checkpoint(self._path)

    def specs(self) -> Mapping[str, TensorSpec]:
        return self._checkpoint.specs

    @contextmanager
    def open(self) -> Iterator[MmapReader]:
        descriptors = open_shards(self._checkpoint)
        try:
            reader = MmapReader(self._checkpoint, descriptors)
        except BaseException:
            close_all(descriptors)
            raise
        try:
            yield reader
            reader.check_unchanged()
        finally:
            reader.close()


class MmapReader:
    """The open scope. A tensor keeps its own hold on the mapping, so it outlives the scope."""

    def __init__(self, checkpoint: Checkpoint, descriptors: list[int]) -> None:
        self._checkpoint = checkpoint
        self._descriptors = descriptors
        self._maps = [_map_privately(descriptor) for descriptor in descriptors]

    def get_tensor(self, name: str) -> torch.Tensor:
        location = self._locate(name)
        spec = self._checkpoint.specs[name]
        return typed_view(self._payload(location), spec) if spec.byte_count else empty_tensor(spec)

    def read_into(self, name: str, out: torch.Tensor) -> None:
        location = self._locate(name)
        spec = self._checkpoint.specs[name]
        target = byte_view(out, spec)
        if spec.byte_count:
            target.copy_(self._payload(location))
            self._check(location.shard)

    def check_unchanged(self) -> None:
        for shard in range(len(self._descriptors)):
            self._check(shard)

    def close(self) -> None:
        """Let go of the maps; those that a tensor still holds stay until it dies."""
        self._maps.clear()
        close_all(self._descriptors)

    def _locate(self, name: str) -> Location:
        if not self._descriptors:
            raise ContractError(f"{name}: asked for after the reading scope ended; open the source again")
        location = self._checkpoint.locate(name)
        self._check(location.shard)
        return location

    def _payload(self, location: Location) -> torch.Tensor:
        stored = location.tensor
        return torch.frombuffer(
            self._maps[location.shard], dtype=torch.uint8, count=stored.byte_count, offset=stored.begin
        )

    def _check(self, shard: int) -> None:
        held = self._checkpoint.shards[shard]
        check_unchanged(self._descriptors[shard], held.identity, held.path)


def _map_privately(descriptor: int) -> mmap.mmap:
    """Copy-on-write, so torch gets writable memory; without NORESERVE a 66 GB file would need 66 GB of commit."""
    return mmap.mmap(
        descriptor,
        0,
        flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
        prot=mmap.PROT_READ | mmap.PROT_WRITE,
    )
