"""A bundle as a folder: `conditioning.safetensors`, and the manifest `bundle.json`, written last, that seals it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from vflash_adapters.manifest import ManifestKind, read_sealed, require_fields, write_sealed
from vflash_adapters.publish import new_directory, refuse_existing
from vflash_ports.conditioning import ConditioningBundle
from vflash_ports.errors import CheckpointError, ContractError

MANIFEST = "bundle.json"
TENSORS = "conditioning.safetensors"
KIND = ManifestKind(format="h3-conditioning", version=1, max_bytes=1 << 20)
FIELDS = {"bundle_id": str, "created_at": str, "body": dict, "file": dict, "video": int, "audio": int}
MAX_TENSOR_BYTES = 4 << 30
"""A full budget of text, references and soundtracks is under 1 GiB."""
MAX_CONDITIONS = 64
_CHUNK = 1 << 20


class SealedFolder:
    """A `ConditioningStore`. The id is a digest of tensors and body, so equal content has an equal id."""

    def check(self, folder: Path) -> None:
        refuse_existing(folder)
        if not folder.absolute().parent.is_dir():
            raise ContractError(f"{folder.parent}: no such folder; create it first")

    def save(self, bundle: ConditioningBundle, folder: Path) -> str:
        from safetensors.torch import save_file

        with new_directory(folder) as work:
            save_file(_tensors(bundle), work / TENSORS)
            file = _identity(work / TENSORS)
            bundle_id = _bundle_id(file["sha256"], bundle.body)
            content = {
                "bundle_id": bundle_id,
                "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "body": bundle.body,
                "file": file,
                "video": len(bundle.video),
                "audio": len(bundle.audio),
            }
            write_sealed(work / MANIFEST, KIND, content)
        return bundle_id

    def load(self, folder: Path) -> ConditioningBundle:
        manifest = folder / MANIFEST
        content = read_sealed(manifest, KIND, FIELDS)
        expected = require_fields(content["file"], {"size": int, "sha256": str}, str(manifest))
        _check_listing(folder)
        _check_file(folder / TENSORS, expected)
        if content["bundle_id"] != _bundle_id(expected["sha256"], content["body"]):
            raise CheckpointError(f"{manifest}: its bundle_id is not that of its content; encode the request again")
        tensors = _read(folder / TENSORS, content["video"], content["audio"])
        return ConditioningBundle(
            embeds=tensors["embeds"],
            tags=tensors["tags"],
            video=tuple(tensors[f"video.{number}"] for number in range(content["video"])),
            audio=tuple(tensors[f"audio.{number}"] for number in range(content["audio"])),
            body=content["body"],
            bundle_id=content["bundle_id"],
        )


def _tensors(bundle: ConditioningBundle) -> dict[str, torch.Tensor]:
    named = {"embeds": bundle.embeds, "tags": bundle.tags}
    named |= {f"video.{number}": tensor for number, tensor in enumerate(bundle.video)}
    named |= {f"audio.{number}": tensor for number, tensor in enumerate(bundle.audio)}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}


def _bundle_id(tensors_sha256: str, body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"h3-conditioning-{hashlib.sha256((tensors_sha256 + text).encode()).hexdigest()[:32]}"


def _identity(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return {"size": path.stat().st_size, "sha256": digest.hexdigest()}


def _check_listing(folder: Path) -> None:
    found = sorted(entry.name for entry in folder.iterdir())
    if found != sorted((MANIFEST, TENSORS)):
        raise CheckpointError(f"{folder}: holds {', '.join(found)}; a bundle is exactly {MANIFEST} and {TENSORS}")


def _check_file(path: Path, expected: Mapping[str, Any]) -> None:
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"{path}: is not a regular file; encode the request again")
    if path.stat().st_size != expected["size"] or expected["size"] > MAX_TENSOR_BYTES:
        raise CheckpointError(
            f"{path}: has {path.stat().st_size} bytes, its manifest says {expected['size']}; encode the request again"
        )
    if _identity(path)["sha256"] != expected["sha256"]:
        raise CheckpointError(f"{path}: was altered after it was sealed; encode the request again")


def _read(path: Path, video: int, audio: int) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (0 <= video <= MAX_CONDITIONS and 0 <= audio <= MAX_CONDITIONS):
        raise CheckpointError(f"{path}: its manifest lists {video} video and {audio} audio conditions")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    names = {"embeds", "tags", *(f"video.{n}" for n in range(video)), *(f"audio.{n}" for n in range(audio))}
    if tensors.keys() != names:
        raise CheckpointError(f"{path}: holds {sorted(tensors)}, its manifest lists {sorted(names)}")
    return tensors
