"""A checkpoint component whose headers were read and agree with its index; no payload has been touched."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen

from vflash_adapters.strict_json import brief
from vflash_adapters.weights.checkpoint_files import ComponentFiles, ComponentIndex, find_component_files
from vflash_adapters.weights.dtypes import TORCH_DTYPES
from vflash_adapters.weights.file_identity import (
    FileIdentity,
    check_unchanged,
    identity_of,
    open_descriptor,
    open_regular,
    warn_if_sparse,
)
from vflash_adapters.weights.safetensors_header import (
    LENGTH_BYTES,
    SafetensorsHeader,
    StoredTensor,
    parse_header,
    parse_header_length,
)
from vflash_ports.errors import CheckpointError
from vflash_ports.weights import TensorSpec


@frozen(kw_only=True)
class Shard:
    """One file as it was when its header was read."""

    path: Path
    identity: FileIdentity
    header: SafetensorsHeader
    header_sha256: str


@frozen(kw_only=True)
class Location:
    """Where a tensor lies: the shard's number and the bytes within it."""

    shard: int
    tensor: StoredTensor


@frozen(kw_only=True)
class Checkpoint:
    """All shards of a component. `locations` and `specs` have the same names, in shard then payload order."""

    path: Path
    shards: tuple[Shard, ...]
    index: ComponentIndex | None
    locations: Mapping[str, Location] = field(repr=False)
    specs: Mapping[str, TensorSpec] = field(repr=False)

    def locate(self, name: str) -> Location:
        try:
            return self.locations[name]
        except KeyError:
            raise CheckpointError(f"{self.path}: has no tensor {brief(name)}") from None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and check every header under `path`; raises `CheckpointError` naming the file and the tensor."""
    files = find_component_files(path)
    shards = tuple(read_shard(shard) for shard in files.shards)
    locations = _locate(path, shards)
    if files.index is not None:
        _check_against_index(files, locations)
    specs = {name: _spec(location.tensor) for name, location in locations.items()}
    return Checkpoint(path=path, shards=shards, index=files.index, locations=locations, specs=specs)


def read_shard(path: Path) -> Shard:
    """Header and identity of one safetensors file."""
    with open_regular(path) as descriptor:
        identity = identity_of(descriptor)
        prefix = os.pread(descriptor, LENGTH_BYTES, 0)
        length = parse_header_length(prefix, file_bytes=identity.size, label=str(path))
        body = os.pread(descriptor, length, LENGTH_BYTES)
        check_unchanged(descriptor, identity, path)
        warn_if_sparse(descriptor, path)
    if len(body) != length:
        raise CheckpointError(f"{path}: only {len(body)} of {length} header bytes could be read; is the disk healthy?")
    header = parse_header(body, file_bytes=identity.size, label=str(path))
    return Shard(path=path, identity=identity, header=header, header_sha256=hashlib.sha256(body).hexdigest())


def open_shards(checkpoint: Checkpoint) -> list[int]:
    """Descriptors of all shards, opened before the first read and compared with what the headers described.

    The caller closes them. Raises `CheckpointError` if the index or a shard changed; nothing stays open then.
    """
    if checkpoint.index is not None:
        with open_regular(checkpoint.index.path) as descriptor:
            check_unchanged(descriptor, checkpoint.index.identity, checkpoint.index.path)
    descriptors: list[int] = []
    try:
        for shard in checkpoint.shards:
            descriptors.append(open_descriptor(shard.path))
            check_unchanged(descriptors[-1], shard.identity, shard.path)
    except BaseException:
        close_all(descriptors)
        raise
    return descriptors


def close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _locate(path: Path, shards: tuple[Shard, ...]) -> dict[str, Location]:
    locations: dict[str, Location] = {}
    for number, shard in enumerate(shards):
        for name, tensor in shard.header.tensors.items():
            if name in locations:
                first = shards[locations[name].shard].path.name
                raise CheckpointError(f"{path}: tensor {brief(name)} is in both {first} and {shard.path.name}")
            locations[name] = Location(shard=number, tensor=tensor)
    return locations


def _check_against_index(files: ComponentFiles, locations: Mapping[str, Location]) -> None:
    assert files.index is not None
    listed = files.index.weight_map
    for name, shard in listed.items():
        if name not in locations or files.shards[locations[name].shard].name != shard:
            raise CheckpointError(f"{files.index.path}: says tensor {brief(name)} is in {shard}, but it is not")
    for name, location in locations.items():
        if name not in listed:
            raise CheckpointError(
                f"{files.index.path}: does not list tensor {brief(name)} of {files.shards[location.shard].name}; "
                "index and shards are from different checkpoints"
            )


def _spec(tensor: StoredTensor) -> TensorSpec:
    return TensorSpec(
        name=tensor.name, dtype=TORCH_DTYPES[tensor.dtype], shape=tensor.shape, byte_count=tensor.byte_count
    )
