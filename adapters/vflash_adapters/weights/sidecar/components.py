"""What a path given to `prepare` stands for: one component, or a model folder with several."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from vflash_adapters.manifest import read_sealed
from vflash_adapters.weights.checkpoint import Checkpoint, read_checkpoint
from vflash_adapters.weights.checkpoint_files import INDEX_SUFFIX, find_component_files
from vflash_adapters.weights.sidecar.sidecar_manifest import BODY_FIELDS, KIND, MANIFEST_NAME
from vflash_ports.errors import CheckpointError


def read_components(source: Path) -> Mapping[str, Checkpoint]:
    """Components by their place in the sidecar: "" for a file or component folder, else the subfolder's name.

    A model folder's own weight files count first; without any, each direct subfolder that holds weights is one.
    Raises `CheckpointError` if there are none.
    """
    if not source.is_dir() or _holds_weights(source):
        return {"": read_checkpoint(source)}
    folders = sorted(name for name in os.listdir(source) if (source / name).is_dir() and _holds_weights(source / name))
    if not folders:
        raise CheckpointError(f"{source}: holds no .safetensors file, nor does a folder in it")
    return {name: read_checkpoint(source / name) for name in folders}


def component_folder(sidecar: Path, component: Path) -> Path:
    """Where in `sidecar` the component at `component` was prepared; raises `CheckpointError` if it was not."""
    folder = find_component_folder(sidecar, component)
    if folder is None:
        raise CheckpointError(f"{sidecar}: holds no finished sidecar for {component}; prepare one")
    return folder


def find_component_folder(sidecar: Path, component: Path) -> Path | None:
    """At the sidecar's root if it was prepared from one component, else under the component folder's name.

    A root sidecar stands for the component whose file names it lists, and for no other.
    """
    name = component.name if component.is_dir() else component.parent.name
    if (sidecar / name / MANIFEST_NAME).is_file():
        return sidecar / name
    if (sidecar / MANIFEST_NAME).is_file() and _stands_for(sidecar, component):
        return sidecar
    return None


def refuse_empty_sidecar(sidecar: Path) -> None:
    """Raises `CheckpointError` for a folder without any finished sidecar."""
    folders = [sidecar, *(path for path in sidecar.iterdir() if path.is_dir())] if sidecar.is_dir() else []
    if not any((folder / MANIFEST_NAME).is_file() for folder in folders):
        raise CheckpointError(f"{sidecar}: holds no finished sidecar; prepare one with `vflash sidecar prepare`")


def _stands_for(sidecar: Path, component: Path) -> bool:
    listed = {shard["source"]["file"] for shard in read_sealed(sidecar / MANIFEST_NAME, KIND, BODY_FIELDS)["shards"]}
    files = {shard.name for shard in find_component_files(component).shards}
    return listed == files


def _holds_weights(folder: Path) -> bool:
    return any(name.endswith((".safetensors", INDEX_SUFFIX)) for name in os.listdir(folder))
