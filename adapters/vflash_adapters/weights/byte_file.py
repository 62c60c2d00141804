"""Reading byte ranges of one open file into memory that somebody else owns.

Two ways to the same bytes. Through the page cache: fastest for what is already in it. Directly (O_DIRECT): 1.7 to 3.3
times as fast for what is not, at a tenth of the CPU, but blind to the cache (docs/benchmarks/2026-11-weights.md).
"""

from __future__ import annotations

import errno
import mmap
import os
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vflash_adapters.weights.page_cache import resident_fraction
from vflash_ports.errors import CheckpointError

Bytes = npt.NDArray[np.uint8]

REQUEST_BYTES = 8 * 2**20  # 1 MiB requests were clearly slower, 32 MiB no faster
ALIGNMENT = 4096
WARM_FRACTION = 0.5
_HUGE_PAGE = 2 * 2**20


class ReadMode(StrEnum):
    """How a file is read; chosen once per file by what the page cache holds."""

    CACHED = "cached"
    DIRECT = "direct"


class ByteFile(Protocol):
    """One open file. Safe to call from several threads as long as each brings its own `scratch`."""

    @property
    def mode(self) -> ReadMode: ...

    def read_into(self, offset: int, out: Bytes, scratch: Bytes) -> None:
        """Fill `out` from byte `offset` on; raises `CheckpointError` if the file ends first.

        `scratch` is page-aligned, at least `len(out) + 2 * ALIGNMENT` long, and may be overwritten.
        """
        ...


def choose_file(descriptor: int, path: Path, mode: ReadMode | None = None) -> ByteFile:
    """The faster way to read this file now, or the named one. The caller keeps and closes `descriptor`."""
    size = os.fstat(descriptor).st_size
    if mode is None:
        fraction = resident_fraction(descriptor, size)
        mode = ReadMode.CACHED if fraction is None or fraction > WARM_FRACTION else ReadMode.DIRECT
    return DirectFile(descriptor, path) if mode is ReadMode.DIRECT else CachedFile(descriptor, path)


def aligned_bytes(count: int) -> Bytes:
    """`count` fresh zero bytes at a page boundary, given back to the system when the last view dies.

    First touch of 4 KiB pages is slower than any disk here; huge pages make it 5 times as fast.
    """
    private = mmap.mmap(-1, max(count, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if count >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        private.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(private, dtype=np.uint8)[:count]


def round_up(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


class CachedFile:
    """Reads through the page cache."""

    mode = ReadMode.CACHED

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path

    def read_into(self, offset: int, out: Bytes, scratch: Bytes) -> None:
        done = 0
        while done < len(out):
            done += _progress(os.preadv(self._descriptor, [out[done:].data], offset + done), self._path)


class DirectFile:
    """Reads past the page cache.

    The device writes straight into `out` where file offset and memory are aligned alike, else into `scratch`, from
    which the asked bytes are copied: one copy, as many as the page cache would have made.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._cached = CachedFile(descriptor, path)
        self._path = path
        self._direct = _reopen_direct(descriptor)

    @property
    def mode(self) -> ReadMode:
        return ReadMode.CACHED if self._direct is None else ReadMode.DIRECT

    def read_into(self, offset: int, out: Bytes, scratch: Bytes) -> None:
        direct = self._direct
        if direct is None or not len(out):
            self._cached.read_into(offset, out, scratch)
        elif offset % ALIGNMENT == out.ctypes.data % ALIGNMENT == len(out) % ALIGNMENT == 0:
            _read_aligned(direct.descriptor, offset, out, len(out), self._path)
        else:
            skip = offset % ALIGNMENT
            window = scratch[: round_up(skip + len(out))]
            _read_aligned(direct.descriptor, offset - skip, window, skip + len(out), self._path)
            out[:] = window[skip : skip + len(out)]


class _DirectDescriptor:
    """Owns a descriptor; closed with its last user."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


def _reopen_direct(descriptor: int) -> _DirectDescriptor | None:
    """The same open file again, uncached; None on a file system that has no direct reads (tmpfs, some overlays)."""
    flag = getattr(os, "O_DIRECT", None)
    if flag is None:
        return None
    try:
        direct = _DirectDescriptor(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC | flag))
        os.preadv(direct.descriptor, [aligned_bytes(ALIGNMENT).data], 0)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT, errno.EOPNOTSUPP):
            return None
        raise
    return direct


def _read_aligned(descriptor: int, offset: int, out: Bytes, wanted: int, path: Path) -> None:
    """Aligned reads until `wanted` bytes are there; the file's last, partial page comes back short."""
    done = 0
    while done < wanted:
        got = _progress(os.preadv(descriptor, [out[done:].data], offset + done), path)
        done += got
        if done < wanted and done % ALIGNMENT:
            raise CheckpointError(f"{path}: ends before byte {offset + wanted}; the file was cut while it was read")


def _progress(got: int, path: Path) -> int:
    if got <= 0:
        raise CheckpointError(f"{path}: ended early; the file was cut while it was read")
    return got
