"""Which file was looked at, so that a later look notices another one."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from vflash_ports.errors import CheckpointError


class SparseFileWarning(UserWarning):
    """A weight file whose blocks were mostly never written: often a download that only reserved its space."""


@frozen(kw_only=True)
class FileIdentity:
    """A file's stamp. ctime catches a restored mtime; only a content hash proves identity beyond doubt."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


@contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """A read-only descriptor of a regular file, symlinks followed; a pipe or device is refused without blocking."""
    descriptor = open_descriptor(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_descriptor(path: Path) -> int:
    """Like `open_regular`, but the caller closes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path}: not a regular file")
    return descriptor


def stamp_of_path(path: Path) -> FileIdentity:
    """The stamp of what lies at `path` now, symlinks followed; raises `CheckpointError` if nothing does."""
    try:
        return _stamp(path.stat())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be looked at: {error.strerror}") from error


def identity_of(descriptor: int) -> FileIdentity:
    return _stamp(os.fstat(descriptor))


def _stamp(found: os.stat_result) -> FileIdentity:
    return FileIdentity(
        size=found.st_size,
        mtime_ns=found.st_mtime_ns,
        ctime_ns=found.st_ctime_ns,
        inode=found.st_ino,
        device=found.st_dev,
    )


def check_unchanged(descriptor: int, expected: FileIdentity, path: Path) -> None:
    """Raise `CheckpointError` if the open file is no longer the one `expected` describes."""
    found = identity_of(descriptor)
    if found != expected:
        changed = [
            name for name in ("size", "mtime_ns", "ctime_ns", "inode", "device") if _differs(found, expected, name)
        ]
        raise CheckpointError(
            f"{path}: the file changed since its header was read ({', '.join(changed)}); "
            "leave weight files alone while they are in use, and start again"
        )


def warn_if_sparse(descriptor: int, path: Path) -> None:
    """Zeros that were never written read as weights; say so, since size and header look right."""
    found = os.fstat(descriptor)
    if found.st_size >= 2**20 and found.st_blocks * 512 < found.st_size // 2:
        warnings.warn(
            f"{path}: only {found.st_blocks * 512} of {found.st_size} bytes are stored on disk; an unfinished download "
            "looks like this (a compressing file system too). `vflash verify` compares the content",
            SparseFileWarning,
            stacklevel=2,
        )


def _differs(found: FileIdentity, expected: FileIdentity, name: str) -> bool:
    return bool(getattr(found, name) != getattr(expected, name))
