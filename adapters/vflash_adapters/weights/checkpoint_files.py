"""Which files make up a checkpoint component: one file, a folder, or an index."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from vflash_adapters.strict_json import brief, parse_object
from vflash_adapters.weights.file_identity import FileIdentity, identity_of, open_regular
from vflash_adapters.weights.safetensors_header import known_container
from vflash_ports.errors import CheckpointError

INDEX_SUFFIX = ".safetensors.index.json"
MAX_INDEX_BYTES = 64 * 2**20
UNFINISHED_SUFFIXES = (".incomplete", ".part", ".aria2", ".crdownload")
HUB_DOWNLOADS = Path(".cache/huggingface/download")  # where the hub client keeps what it has not finished


@frozen(kw_only=True)
class ComponentIndex:
    """A checked `*.safetensors.index.json`: tensor name -> shard file name."""

    path: Path
    identity: FileIdentity
    sha256: str
    weight_map: Mapping[str, str]


@frozen(kw_only=True)
class ComponentFiles:
    """The shard files of a component in name order, and the index that names them, if there is one."""

    shards: tuple[Path, ...]
    index: ComponentIndex | None


def find_component_files(path: Path) -> ComponentFiles:
    """Resolve a safetensors file, an index file, or a folder that holds either.

    Raises `CheckpointError` for a missing or ambiguous choice, a shard outside the folder, a missing shard, and for
    leftovers of an unfinished download.
    """
    if path.is_dir():
        return _from_folder(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder; pass a safetensors file, its index, or the folder")
    if path.name.endswith(INDEX_SUFFIX):
        return _from_index(path)
    if path.suffix != ".safetensors":
        raise CheckpointError(f"{path}: {_container(path)}, not a .safetensors file nor a {INDEX_SUFFIX[1:]} file")
    _refuse_leftovers(path.parent, lambda name: name.startswith(path.name))
    _refuse_leftovers(path.parent / HUB_DOWNLOADS, lambda name: name.startswith(path.name))
    return ComponentFiles(shards=(path,), index=None)


def _from_folder(folder: Path) -> ComponentFiles:
    names = sorted(os.listdir(folder))
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    files = [name for name in names if name.endswith(".safetensors")]
    _refuse_leftovers(folder, lambda _: True)
    _refuse_leftovers(folder.parent / HUB_DOWNLOADS / folder.name, lambda _: True)
    if len(indexes) == 1:
        return _from_index(folder / indexes[0])
    if len(indexes) > 1:
        raise CheckpointError(f"{folder}: several indexes ({', '.join(indexes)}); pass the one to load")
    if len(files) == 1:
        return ComponentFiles(shards=(folder / files[0],), index=None)
    if not files:
        raise CheckpointError(f"{folder}: holds no .safetensors file; is the download complete?")
    raise CheckpointError(
        f"{folder}: {len(files)} .safetensors files and no {INDEX_SUFFIX[1:]}; download the index, or pass one file"
    )


def _from_index(path: Path) -> ComponentFiles:
    index = read_index(path)
    shards = tuple(path.parent / name for name in sorted(set(index.weight_map.values())))
    missing = [shard.name for shard in shards if not shard.exists()]
    if missing:
        raise CheckpointError(
            f"{path}: names {len(missing)} missing shard(s): {', '.join(missing[:5])}; finish the download"
        )
    _refuse_leftovers(path.parent, lambda name: name.startswith(tuple(shard.name for shard in shards)))
    return ComponentFiles(shards=shards, index=index)


def read_index(path: Path) -> ComponentIndex:
    """Parse and check an index; shard names must be plain file names, so no path leads out of the folder."""
    with open_regular(path) as descriptor:
        identity = identity_of(descriptor)
        if identity.size > MAX_INDEX_BYTES:
            raise CheckpointError(f"{path}: an index of {identity.size} bytes is larger than any checkpoint needs")
        body = os.pread(descriptor, identity.size, 0)
    weight_map = parse_object(body, str(path)).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: has no weight_map; download the index again")
    for name, shard in weight_map.items():
        if not _is_plain_name(shard):
            raise CheckpointError(
                f"{path}: tensor {brief(name)} points to {brief(shard)}, which is not a file of this folder"
            )
    return ComponentIndex(path=path, identity=identity, sha256=hashlib.sha256(body).hexdigest(), weight_map=weight_map)


def _container(path: Path) -> str:
    with open_regular(path) as descriptor:
        return known_container(os.pread(descriptor, 8, 0)) or "unknown content"


def _is_plain_name(shard: Any) -> bool:
    return (
        isinstance(shard, str)
        and shard.endswith(".safetensors")
        and not any(character in shard for character in "/\\\0")
        and shard.isprintable()
    )


def _refuse_leftovers(folder: Path, belongs: Callable[[str], bool]) -> None:
    if not folder.is_dir():
        return
    leftovers = [name for name in os.listdir(folder) if name.endswith(UNFINISHED_SUFFIXES) and belongs(name)]
    if leftovers:
        raise CheckpointError(
            f"{folder / min(leftovers)}: left over from an unfinished download; finish the download, or delete it"
        )
