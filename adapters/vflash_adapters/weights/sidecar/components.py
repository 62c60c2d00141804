"""What a path given to `prepare` stands for: one component, or a model folder with several."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from vflash_adapters.weights.checkpoint import Checkpoint, read_checkpoint
from vflash_adapters.weights.checkpoint_files import INDEX_SUFFIX
from vflash_adapters.weights.sidecar.sidecar_manifest import MANIFEST_NAME
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
    """Where in `sidecar` the component at `component` was prepared: at its root, or under its folder's name.

    Raises `CheckpointError` if it is in neither place.
    """
    name = component.name if component.is_dir() else component.parent.name
    for folder in (sidecar, sidecar / name):
        if (folder / MANIFEST_NAME).is_file():
            return folder
    raise CheckpointError(f"{sidecar}: holds no finished sidecar for {component}; prepare one")


def _holds_weights(folder: Path) -> bool:
    return any(name.endswith((".safetensors", INDEX_SUFFIX)) for name in os.listdir(folder))
