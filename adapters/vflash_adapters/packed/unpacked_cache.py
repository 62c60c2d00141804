"""A packed folder, unpacked once into a cache folder under a name that its content decides."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from vflash_adapters.packed.packed_manifest import PackedFile, PackedManifest, read_manifest
from vflash_adapters.packed.unpack import unpack_folder
from vflash_ports.errors import ContractError

TINY_H3 = Path(__file__).parent / "tiny_h3"
"""The trained tiny H3 of this installation (docs/tiny-h3.md)."""


def cached_tiny_h3(cache: Path) -> Path:
    """The trained tiny H3 as a checkpoint folder in `cache`; no network is used."""
    return cached_folder(TINY_H3, cache)


def cached_folder(packed: Path, cache: Path) -> Path:
    """`packed` as a folder in `cache`: unpacked at the first use, after that only compared with its digests.

    Uses at once by several processes are safe: one unpacks, the others wait for it. A folder that is not whole, byte
    for byte, is made again. Raises `ContractError` if `cache` cannot be made or written while that is needed.
    """
    manifest = read_manifest(packed)
    folder = cache / f"{packed.name.replace('_', '-')}-{manifest.identity[:16]}"
    if is_whole(folder, manifest):
        return folder
    with _turn(cache, folder.name):
        if not is_whole(folder, manifest):
            _remove(folder)
            unpack_folder(packed, folder)
    return folder


def is_whole(folder: Path, manifest: PackedManifest) -> bool:
    """Exactly the packed files are there, each with its digest."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    return found == {file.path for file in manifest.files} and all(_is_same(folder, file) for file in manifest.files)


def _is_same(folder: Path, file: PackedFile) -> bool:
    try:
        with (folder / file.path).open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
    except OSError:
        return False  # unreadable is not whole; making it again tells what the system refuses


@contextmanager
def _turn(cache: Path, name: str) -> Iterator[None]:
    """One process at a time; the kernel gives the turn back when its holder dies."""
    with ExitStack() as opened:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            lock = opened.enter_context((cache / f".{name}.lock").open("ab"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise ContractError(
                f"cache folder {cache} cannot be made or written ({error.strerror}); name another as XDG_CACHE_HOME"
            ) from error
        yield


def _remove(folder: Path) -> None:
    """Out of the way at once, so that nobody opens half of it; who has it open keeps it."""
    if not os.path.lexists(folder):
        return
    aside = folder.with_name(f".{folder.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()
