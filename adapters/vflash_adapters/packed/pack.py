"""A checkpoint folder into two files: equal tensors stored once, narrow ones narrow, exponents coded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vflash_adapters.packed.narrow import narrowed
from vflash_adapters.packed.packed_manifest import (
    PAYLOAD_NAME,
    PLAIN,
    PackedFile,
    Stream,
    read_manifest,
    stream_blocks,
    write_manifest,
)
from vflash_adapters.publish import new_directory
from vflash_adapters.weights.byte_file import Bytes
from vflash_adapters.weights.safetensors_header import LENGTH_BYTES, parse_header, parse_header_length
from vflash_adapters.weights.sidecar.codec import BlockEncoder, Record
from vflash_adapters.weights.sidecar.merge_numpy import NumpyMerge
from vflash_adapters.weights.sidecar.planes import PLANES_BY_DTYPE
from vflash_ports.errors import CheckpointError


def pack_folder(source: Path, output: Path) -> int:
    """Every file of `source`, to be had again byte for byte; the packed bytes' number. The same bytes on repeat.

    `output` must not exist; it appears whole or not at all. Raises `CheckpointError` for a folder without files, for a
    hidden one and for a damaged safetensors file, `UnsupportedError` without zstandard and xxhash.
    """
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    if not paths:
        raise CheckpointError(f"{source}: holds no file to pack")
    streams = _Streams()
    files = [_packed_file(path, path.relative_to(source).as_posix(), streams) for path in paths]
    with new_directory(output) as work, (work / PAYLOAD_NAME).open("xb") as payload:
        stored = []
        for name, content in streams.joined():
            records = _encoded(name, content)
            for record in records:
                payload.writelines(part.data for part in record.parts)
            stored.append(Stream(name=name, length=len(content), rows=tuple(record.row for record in records)))
        payload.flush()
        write_manifest(work, files, stored)
        read_manifest(work)  # what cannot be read again, a hidden file's name say, is refused now
        return sum(path.stat().st_size for path in work.iterdir())


class _Streams:
    """Bytes gathered by the dtype they are stored as; what was added before is not added again."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Bytes]] = {}
        self._ends: dict[str, int] = {}
        self._seen: dict[tuple[str, bytes], int] = {}

    def add(self, dtype: str, content: Bytes) -> tuple[str, int]:
        """The stream and the offset where `content` is."""
        name = dtype if dtype in PLANES_BY_DTYPE else PLAIN
        key = (name, hashlib.sha256(content.data).digest())
        if key not in self._seen:
            self._seen[key] = self._ends.get(name, 0)
            self._parts.setdefault(name, []).append(content)
            self._ends[name] = self._seen[key] + len(content)
        return name, self._seen[key]

    def joined(self) -> Iterator[tuple[str, Bytes]]:
        for name in sorted(self._parts):
            yield name, np.concatenate(self._parts[name])


def _packed_file(path: Path, name: str, streams: _Streams) -> PackedFile:
    content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    head, pieces = content, []
    if path.suffix == ".safetensors":
        head, tensors = _tensors(content, str(path))
        pieces = [streams.add(*narrowed(dtype, plain)) for dtype, plain in tensors]
    _, begin = streams.add(PLAIN, head)
    return PackedFile(
        path=name,
        size=len(content),
        sha256=hashlib.sha256(content.data).hexdigest(),
        head=(begin, begin + len(head)),
        pieces=tuple(pieces),
    )


def _tensors(content: Bytes, label: str) -> tuple[Bytes, list[tuple[str, Bytes]]]:
    """The header's bytes, and every tensor's dtype and bytes in payload order."""
    size = len(content)
    length = parse_header_length(content[:LENGTH_BYTES].tobytes(), file_bytes=size, label=label)
    head = content[: LENGTH_BYTES + length]
    header = parse_header(head[LENGTH_BYTES:].tobytes(), file_bytes=size, label=label)
    return head, [(tensor.dtype, content[tensor.begin : tensor.end]) for tensor in header.tensors.values()]


def _encoded(name: str, content: Bytes) -> list[Record]:
    encoder = BlockEncoder(NumpyMerge())
    return [
        encoder.encode(block, content[block.begin : block.begin + block.length])
        for block in stream_blocks(name, len(content))
    ]
