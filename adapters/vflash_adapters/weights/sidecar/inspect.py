"""What a sidecar holds, from its manifest alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vflash_adapters.manifest import read_sealed, require_fields
from vflash_adapters.weights.sidecar.merges import MergeChoice
from vflash_adapters.weights.sidecar.sidecar_manifest import BODY_FIELDS, KIND, MANIFEST_NAME, SHARD_FIELDS
from vflash_ports.errors import CheckpointError


def inspect(sidecar: Path) -> Mapping[str, Any]:
    """Sizes, ratios per dtype, writer versions and block counts of each component, ready for JSON.

    Nothing but manifests is read: `verify` is what proves the data. Raises `CheckpointError` for a folder that is no
    finished sidecar.
    """
    folders = {"": sidecar} if (sidecar / MANIFEST_NAME).is_file() else _component_folders(sidecar)
    components = {name or ".": _component(folder) for name, folder in folders.items()}
    return {
        "sidecar": str(sidecar),
        "format": KIND.format,
        "version": KIND.version,
        "merges": {choice.value: _is_usable(choice) for choice in MergeChoice},
        "components": components,
    }


def _component_folders(sidecar: Path) -> dict[str, Path]:
    if not sidecar.is_dir():
        raise CheckpointError(f"{sidecar}: no such folder")
    folders = {path.name: path for path in sorted(sidecar.iterdir()) if (path / MANIFEST_NAME).is_file()}
    if not folders:
        raise CheckpointError(f"{sidecar}: holds no finished sidecar; prepare one")
    return folders


def _component(folder: Path) -> dict[str, Any]:
    label = str(folder / MANIFEST_NAME)
    body = read_sealed(folder / MANIFEST_NAME, KIND, BODY_FIELDS)
    shards = [require_fields(shard, SHARD_FIELDS, label) for shard in body["shards"]]
    rows = [row for shard in shards for row in shard["rows"]]
    return {
        "writer": body["writer"],
        "block_bytes": body["block_bytes"],
        "files": [shard["source"] for shard in shards],
        "source_bytes": sum(shard["source"]["size"] for shard in shards),
        "stored_bytes": sum(shard["data"]["size"] for shard in shards),
        "blocks": {"coded": sum(row[0] > 0 for row in rows), "plain": sum(row[0] == 0 for row in rows)},
        "dtypes": _ratios(shards),
    }


def _ratios(shards: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    totals: dict[str, list[int]] = {}
    for shard in shards:
        for dtype, (plain, stored) in shard["dtypes"].items():
            entry = totals.setdefault(dtype, [0, 0])
            entry[0] += plain
            entry[1] += stored
    return {
        dtype: {"plain_bytes": plain, "stored_bytes": stored, "ratio": round(stored / plain, 4)}
        for dtype, (plain, stored) in totals.items()
    }


def _is_usable(choice: MergeChoice) -> bool:
    return choice is MergeChoice.NUMPY or importlib.util.find_spec("numba") is not None
