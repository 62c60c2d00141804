"""Writing a safetensors component piece by piece: sizes are known beforehand, so one tensor at a time is held."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import torch
from attrs import frozen

from vflash_adapters.weights.dtypes import TORCH_DTYPES
from vflash_adapters.weights.safetensors_header import LENGTH_BYTES, METADATA_KEY
from vflash_ports.weights import TensorSpec

MAX_SHARD_BYTES = 4 * 2**30
_STORED_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@frozen(kw_only=True)
class WrittenFile:
    """One file of a component, hashed while it was written."""

    name: str
    size: int
    sha256: str


def plan_shards(specs: Sequence[TensorSpec]) -> list[list[TensorSpec]]:
    """`specs` in order, cut where the next tensor would pass `MAX_SHARD_BYTES`."""
    shards: list[list[TensorSpec]] = [[]]
    size = 0
    for spec in specs:
        if shards[-1] and size + spec.byte_count > MAX_SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(spec)
        size += spec.byte_count
    return shards


def write_shards(
    folder: Path, stem: str, specs: Sequence[TensorSpec], tensors: Iterator[torch.Tensor]
) -> list[WrittenFile]:
    """Write `tensors`, one for each of `specs` in order, as `stem`*.safetensors in `folder`, with an index if there are
    several files. Names are those the public loaders look for."""
    shards = plan_shards(specs)
    names = [f"{stem}-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    if len(shards) == 1:
        return [_write_file(folder / f"{stem}.safetensors", shards[0], tensors)]
    written = [_write_file(folder / name, shard, tensors) for name, shard in zip(names, shards, strict=True)]
    total = sum(spec.byte_count for spec in specs)
    weight_map = {spec.name: name for name, shard in zip(names, shards, strict=True) for spec in shard}
    index = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1, sort_keys=True).encode()
    path = folder / f"{stem}.safetensors.index.json"
    path.write_bytes(index)
    return [*written, WrittenFile(name=path.name, size=len(index), sha256=hashlib.sha256(index).hexdigest())]


def _write_file(path: Path, specs: Sequence[TensorSpec], tensors: Iterator[torch.Tensor]) -> WrittenFile:
    digest = hashlib.sha256()
    with path.open("xb") as file:
        _put(file, digest, _header(specs))
        for spec in specs:
            tensor = next(tensors)
            assert (tensor.dtype, tuple(tensor.shape)) == (spec.dtype, spec.shape), spec.name
            _put(file, digest, tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        size = file.tell()
    return WrittenFile(name=path.name, size=size, sha256=digest.hexdigest())


def _header(specs: Iterable[TensorSpec]) -> bytes:
    fields: dict[str, Mapping[str, object]] = {METADATA_KEY: {"format": "pt"}}
    offset = 0
    for spec in specs:
        end = offset + spec.byte_count
        fields[spec.name] = {
            "dtype": _STORED_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    body = json.dumps(fields, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def _put(file: BinaryIO, digest: hashlib._Hash, content: bytes | memoryview) -> None:
    file.write(content)
    digest.update(content)
