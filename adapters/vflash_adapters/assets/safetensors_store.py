"""Compiled assets as a folder of safetensors files with an index, a sealed manifest and a receipt of file stamps."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, frozen
from safetensors.torch import save_file

from vflash_adapters.manifest import ManifestKind, read_sealed, require_fields, seal, write_sealed
from vflash_adapters.publish import new_directory
from vflash_adapters.weights.checkpoint import Checkpoint, read_checkpoint
from vflash_adapters.weights.file_identity import FileIdentity, open_regular, stamp_of_path
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import CheckpointError, ContractError
from vflash_ports.observer import Observer, SilentObserver
from vflash_ports.weights import WeightOpener, WeightSource

MANIFEST, RECEIPT, INDEX = "assets.json", "receipt.json", "assets.safetensors.index.json"
KIND = ManifestKind(format="vflash-compiled-assets", version=1, max_bytes=32 * 2**20)
RECEIPT_KIND = ManifestKind(format="vflash-assets-receipt", version=1, max_bytes=2**20)
_PIECE = 4 * 2**20


@frozen(kw_only=True)
class SafetensorsAssets:
    """An `AssetStore`. `opener` reads the published tensors: mapped, buffered or through a sidecar."""

    opener: WeightOpener = MmapWeights

    def identify(self, path: Path, *, hash_content: bool, observer: Observer) -> dict[str, Any]:
        checkpoint = read_checkpoint(path)
        total, done = sum(shard.identity.size for shard in checkpoint.shards), 0
        files = []
        for shard in checkpoint.shards:
            digest = None
            if hash_content:
                digest = _hash_file(shard.path)
                done += shard.identity.size
                observer.progress("hash", done, total)
            files.append(
                {
                    "file": shard.path.name,
                    "size": shard.identity.size,
                    "mtime_ns": shard.identity.mtime_ns,
                    "header_sha256": shard.header_sha256,
                    "sha256": digest,
                }
            )
        return {"files": files, "content_hashes": "measured" if hash_content else "not measured"}

    @contextmanager
    def create(self, output: Path) -> Iterator[_Writer]:
        with new_directory(output) as work:
            writer = _Writer(work)
            yield writer
            writer.check_sealed()

    def open(self, path: Path) -> OpenAssets:
        body = _read_manifest(path)
        checkpoint = read_checkpoint(path / INDEX)
        _check_files(path, body["files"], checkpoint)
        assets = OpenAssets(path=path, body=body["body"], source=self.opener(path / INDEX), stamps=_read_receipt(path))
        assets.check_unchanged()
        return assets


@frozen(kw_only=True, eq=False)
class OpenAssets:
    """`CompiledAssets` of one folder."""

    path: Path
    body: Mapping[str, Any]
    source: WeightSource
    stamps: Mapping[str, FileIdentity]

    def check_unchanged(self) -> None:
        for name, stamp in self.stamps.items():
            if stamp_of_path(self.path / name) != stamp:
                raise CheckpointError(
                    f"{self.path / name}: is not the file the receipt describes (moved, copied or changed); "
                    f"run `vflash assets {self.path} --renew`, which compares content hashes first"
                )


def verify_assets(path: Path, *, renew: bool = False, observer: Observer | None = None) -> dict[str, Any]:
    """Hash every file and compare with the manifest; with `renew`, stamp the files anew as they lie here.

    Raises `CheckpointError` at the first difference; the receipt is only renewed for a folder that passed whole.
    """
    watched, files = observer or SilentObserver(), _read_manifest(path)["files"]
    total, done = sum(entry["size"] for entry in files.values()), 0
    for name, entry in files.items():
        if _hash_file(path / name) != entry["sha256"]:
            raise CheckpointError(f"{path / name}: content differs from the manifest; compile the assets again")
        done += entry["size"]
        watched.progress("hash", done, total)
    if renew:
        _write_receipt(path, [*files, MANIFEST], replace=True)
    return {"assets": str(path), "files": len(files), "byte_count": total, "receipt": "renewed" if renew else "kept"}


class _Writer:
    def __init__(self, work: Path) -> None:
        self._work = work
        self._files: dict[str, dict[str, Any]] = {}
        self._weight_map: dict[str, str] = {}
        self._sealed = False

    def add(self, stem: str, tensors: Mapping[str, torch.Tensor]) -> None:
        name = f"{stem}.safetensors"
        doubled = self._weight_map.keys() & tensors.keys()
        assert name not in self._files, f"asset {name} was written before"
        assert not doubled, f"tensors {sorted(doubled)} were written before"
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, self._work / name)
        self._record(name)
        self._weight_map.update(dict.fromkeys(tensors, name))

    def seal(self, body: Mapping[str, Any]) -> None:
        index = {"metadata": {}, "weight_map": self._weight_map}
        (self._work / INDEX).write_text(json.dumps(index, sort_keys=True), encoding="utf-8")
        self._record(INDEX)
        write_sealed(self._work / MANIFEST, KIND, {"body": dict(body), "files": self._files})
        _write_receipt(self._work, [*self._files, MANIFEST], replace=False)
        self._sealed = True

    def check_sealed(self) -> None:
        if not self._sealed:
            raise ContractError(f"{self._work}: assets were written but never sealed")

    def _record(self, name: str) -> None:
        path = self._work / name
        with path.open("rb") as file:
            os.fsync(file.fileno())
        self._files[name] = {"size": path.stat().st_size, "sha256": _hash_file(path)}


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder; compile assets with `vflash compile`")
    manifest = read_sealed(path / MANIFEST, KIND, {"body": dict, "files": dict})
    for name, entry in manifest["files"].items():
        require_fields(entry, {"size": int, "sha256": str}, f"{path / MANIFEST}: {name}")
    return manifest


def _check_files(path: Path, files: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    found = {shard.path.name: shard.identity.size for shard in checkpoint.shards}
    found[INDEX] = (path / INDEX).stat().st_size
    listed = {name: entry["size"] for name, entry in files.items()}
    if found != listed:
        odd = sorted(name for name in found.keys() | listed.keys() if found.get(name) != listed.get(name))
        raise CheckpointError(
            f"{path}: files differ from the manifest ({', '.join(odd[:5])}); compile the assets again"
        )


def _read_receipt(path: Path) -> dict[str, FileIdentity]:
    stamps = read_sealed(path / RECEIPT, RECEIPT_KIND, {"stamps": dict})["stamps"]
    fields = dict.fromkeys(("size", "mtime_ns", "ctime_ns", "inode", "device"), int)
    return {
        name: FileIdentity(**require_fields(stamp, fields, f"{path / RECEIPT}: {name}"))
        for name, stamp in stamps.items()
    }


def _write_receipt(path: Path, names: list[str], *, replace: bool) -> None:
    body = {"stamps": {name: asdict(stamp_of_path(path / name)) for name in names}}
    if not replace:
        write_sealed(path / RECEIPT, RECEIPT_KIND, body)
        return
    fresh = path / f".{RECEIPT}.writing"
    fresh.write_bytes(seal(RECEIPT_KIND, body))
    fresh.replace(path / RECEIPT)


def _hash_file(path: Path) -> str:
    state = hashlib.sha256()
    with open_regular(path) as descriptor:
        while piece := os.read(descriptor, _PIECE):
            state.update(piece)
    return state.hexdigest()
