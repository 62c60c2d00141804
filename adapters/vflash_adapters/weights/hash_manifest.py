"""A folder's content hashes, made once, checked on demand: they catch a damaged byte in a file of the right size."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from attrs import frozen

from vflash_adapters.manifest import ManifestKind, read_sealed, require_fields, seal
from vflash_adapters.publish import new_file, refuse_existing
from vflash_adapters.weights.file_identity import check_unchanged, identity_of, open_regular
from vflash_adapters.weights.read_workers import checked_count
from vflash_ports.errors import CheckpointError
from vflash_ports.observer import Observer, SilentObserver

KIND = ManifestKind(format="vflash-content-hashes", version=1, max_bytes=16 * 2**20)
WEIGHT_SUFFIXES = (".safetensors", ".json")
_PIECE = 4 * 2**20


@frozen(kw_only=True)
class HashReport:
    """What was hashed."""

    manifest: Path
    files: int
    byte_count: int


def write_hashes(folder: Path, manifest: Path, *, workers: int = 2, observer: Observer | None = None) -> HashReport:
    """Hash every file below `folder` (hidden ones aside) with SHA-256 and seal the list into the new file `manifest`.

    Raises `CheckpointError` for an empty or missing folder, `ContractError` if `manifest` exists.
    """
    refuse_existing(manifest)  # before hashing, which reads everything
    sizes = {name: (folder / name).stat().st_size for name in _file_names(folder, manifest)}
    if not sizes:
        raise CheckpointError(f"{folder}: no such folder, or no file in it")
    hashes = _hash_all(folder, sizes, workers, observer or SilentObserver())
    body = {"files": {name: {"size": sizes[name], "sha256": hashes[name]} for name in sizes}}
    new_file(manifest, seal(KIND, body))
    return HashReport(manifest=manifest, files=len(sizes), byte_count=sum(sizes.values()))


def check_hashes(folder: Path, manifest: Path, *, workers: int = 2, observer: Observer | None = None) -> HashReport:
    """Compare `folder` with the hashes taken earlier.

    Raises `CheckpointError` naming the files that are missing, of another size or content, or weights never hashed.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    if not manifest.is_file():
        raise CheckpointError(f"{manifest}: no such file; take the hashes first, with `vflash verify --record`")
    listed = _read_hashes(manifest)
    present = set(_file_names(folder, manifest))
    faults = [f"{name} is missing" for name in listed if name not in present]
    faults += [f"{name} was never hashed" for name in present - set(listed) if name.endswith(WEIGHT_SUFFIXES)]
    sizes = {name: (folder / name).stat().st_size for name in listed if name in present}
    faults += [
        f"{name} has {size} bytes, not {listed[name][0]}" for name, size in sizes.items() if size != listed[name][0]
    ]
    _refuse(faults, folder)
    hashes = _hash_all(folder, sizes, workers, observer or SilentObserver())
    _refuse([f"{name} has other content" for name in sizes if hashes[name] != listed[name][1]], folder)
    return HashReport(manifest=manifest, files=len(sizes), byte_count=sum(sizes.values()))


def _read_hashes(manifest: Path) -> dict[str, tuple[int, str]]:
    files = read_sealed(manifest, KIND, {"files": dict})["files"]
    entries = {
        name: require_fields(entry, {"size": int, "sha256": str}, str(manifest)) for name, entry in files.items()
    }
    return {name: (entry["size"], entry["sha256"]) for name, entry in entries.items()}


def _refuse(faults: list[str], folder: Path) -> None:
    if faults:
        raise CheckpointError(f"{folder}: {'; '.join(sorted(faults)[:8])}; download these files again")


def _file_names(folder: Path, manifest: Path) -> Iterator[str]:
    """Paths below `folder`, with `/`, in order; the manifest itself and hidden entries are no content."""
    own = manifest.resolve()
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(root, name)
            if not name.startswith(".") and path.resolve() != own:
                yield path.relative_to(folder).as_posix()


def _hash_all(folder: Path, sizes: Mapping[str, int], workers: int, observer: Observer) -> dict[str, str]:
    total, done, lock = sum(sizes.values()), 0, Lock()

    def advance(byte_count: int) -> None:
        nonlocal done
        with lock:
            done += byte_count
            observer.progress("hash", done, total)

    with ThreadPoolExecutor(checked_count(workers, name="workers"), thread_name_prefix="vflash-hash") as threads:
        running = {name: threads.submit(_hash_file, folder / name, advance) for name in sizes}
        try:
            return {name: future.result() for name, future in running.items()}
        finally:
            for future in running.values():
                future.cancel()


def _hash_file(path: Path, advance: Callable[[int], None]) -> str:
    state = hashlib.sha256()
    with open_regular(path) as descriptor:
        identity = identity_of(descriptor)
        while piece := os.read(descriptor, _PIECE):
            state.update(piece)
            advance(len(piece))
        check_unchanged(descriptor, identity, path)
    return state.hexdigest()
