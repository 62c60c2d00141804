"""Weights read into owned memory by a few bounded readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from attrs import frozen

from vflash_adapters.weights.byte_file import (
    ALIGNMENT,
    REQUEST_BYTES,
    ByteFile,
    Bytes,
    aligned_bytes,
    choose_file,
)
from vflash_adapters.weights.checkpoint import Checkpoint, close_all, open_shards, read_checkpoint
from vflash_adapters.weights.file_identity import check_unchanged
from vflash_adapters.weights.owned_reader import OwnedReader
from vflash_adapters.weights.read_workers import ReadWorkers, checked_count
from vflash_ports.weights import TensorSpec

OpenFile = Callable[[int, Path], ByteFile]


class BufferedWeights:
    """A `WeightSource` that copies bytes into its own buffers or the caller's, with 1, 2, 4 or 8 readers.

    Each file is read directly when less than half of it is in the page cache, else through the cache. A file cut or
    changed while it is read is an error here, never a crash; nothing of a failed read is kept.
    """

    def __init__(self, path: Path, *, read_workers: int = 4, open_file: OpenFile = choose_file) -> None:
        self._path = path
        self._read_workers = checked_count(read_workers)
        self._open_file = open_file

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return read_checkpoint(self._path)

    def specs(self) -> Mapping[str, TensorSpec]:
        return self._checkpoint.specs

    @contextmanager
    def open(self) -> Iterator[OwnedReader]:
        payload = FilePayload(self._checkpoint, ReadWorkers(self._read_workers), self._open_file)
        reader = OwnedReader(self._checkpoint, payload)
        try:
            yield reader
            reader.check_unchanged()
        finally:
            reader.close()


@frozen
class _Piece:
    """Bytes [start, stop) of the range being filled."""

    start: int
    stop: int


class FilePayload:
    """Bytes of the original files. Owns descriptors, threads and scratch; `close` gives all of them back."""

    def __init__(self, checkpoint: Checkpoint, workers: ReadWorkers, open_file: OpenFile) -> None:
        self._checkpoint = checkpoint
        self._workers = workers
        self._open_file = open_file
        self._files: dict[int, ByteFile] = {}
        # untouched pages cost nothing: only direct reads that are not aligned ever write here
        self._scratch = [aligned_bytes(REQUEST_BYTES + 2 * ALIGNMENT) for _ in range(workers.count)]
        self._descriptors = open_shards(checkpoint)

    def fill(self, shard: int, begin: int, out: Bytes) -> None:
        file = self._file(shard)

        def read(slot: int, piece: _Piece) -> None:
            file.read_into(begin + piece.start, out[piece.start : piece.stop], self._scratch[slot])

        self._workers.run(_pieces(begin, len(out)), read)

    def check_unchanged(self) -> None:
        for shard, descriptor in zip(self._checkpoint.shards, self._descriptors, strict=True):
            check_unchanged(descriptor, shard.identity, shard.path)

    def read_modes(self) -> Mapping[str, str]:
        return {self._checkpoint.shards[number].path.name: file.mode for number, file in self._files.items()}

    def close(self) -> None:
        self._workers.close()
        self._files.clear()
        self._scratch.clear()
        close_all(self._descriptors)

    def _file(self, shard: int) -> ByteFile:
        if shard not in self._files:
            self._files[shard] = self._open_file(self._descriptors[shard], self._checkpoint.shards[shard].path)
        return self._files[shard]


def _pieces(begin: int, length: int) -> list[_Piece]:
    """Requests of at most `REQUEST_BYTES`, cut at file offsets that direct reads can use as they are."""
    cuts = list(range(-(-(begin + 1) // REQUEST_BYTES) * REQUEST_BYTES - begin, length, REQUEST_BYTES))
    return [_Piece(start, stop) for start, stop in zip([0, *cuts], [*cuts, length], strict=True)]
