"""A packed folder's files again, each compared with the digest that was taken of it before packing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from vflash_adapters.packed.narrow import NARROW, WIDE, widened
from vflash_adapters.packed.packed_manifest import (
    PAYLOAD_NAME,
    PLAIN,
    PackedFile,
    PackedManifest,
    Stream,
    read_manifest,
    record_offsets,
)
from vflash_adapters.publish import new_directory
from vflash_adapters.weights.byte_file import Bytes
from vflash_adapters.weights.safetensors_header import LENGTH_BYTES, parse_header
from vflash_adapters.weights.sidecar.codec import BlockDecoder
from vflash_adapters.weights.sidecar.merge_numpy import NumpyMerge
from vflash_ports.errors import CheckpointError


def unpack_folder(packed: Path, output: Path) -> PackedManifest:
    """The files as they were packed, in the new folder `output`, which appears whole or not at all.

    Raises `CheckpointError` naming what is damaged, `ContractError` if `output` exists or cannot be made.
    """
    manifest = read_manifest(packed)
    streams = _decoded(manifest, packed / PAYLOAD_NAME)
    with new_directory(output) as work:
        for file in manifest.files:
            target = work / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            content = np.concatenate(list(_parts(file, streams)))
            if len(content) != file.size or hashlib.sha256(content.data).hexdigest() != file.sha256:
                raise CheckpointError(f"{packed}: {file.path} does not unpack to what was packed; install vflash again")
            target.write_bytes(content.data)
    return manifest


def _decoded(manifest: PackedManifest, payload: Path) -> Mapping[str, Bytes]:
    """Every stream's plain bytes."""
    offsets = record_offsets(manifest.streams)
    wanted = max((ends[-1] for ends in offsets.values()), default=0)
    try:
        content = np.fromfile(payload, dtype=np.uint8)
    except OSError as error:
        raise CheckpointError(f"{payload}: cannot be read ({error.strerror}); install vflash again") from error
    if len(content) != wanted:
        raise CheckpointError(f"{payload}: holds {len(content)} bytes, expected {wanted}; install vflash again")
    decoder = BlockDecoder(NumpyMerge())
    return {
        stream.name: _stream_bytes(stream, content, offsets[stream.name], decoder, str(payload))
        for stream in manifest.streams
    }


def _stream_bytes(stream: Stream, content: Bytes, offsets: list[int], decoder: BlockDecoder, label: str) -> Bytes:
    plain = np.empty(stream.length, dtype=np.uint8)
    for number, (block, row) in enumerate(zip(stream.blocks(), stream.rows, strict=True)):
        record = content[offsets[number] : offsets[number + 1]]
        decoder.decode(block, row, record, plain[block.begin : block.begin + block.length], label)
    return plain


def _parts(file: PackedFile, streams: Mapping[str, Bytes]) -> Iterator[Bytes]:
    head = _slice(streams, PLAIN, file.head[0], file.head[1] - file.head[0], file.path)
    yield head
    if not file.pieces:
        return
    tensors = parse_header(head[LENGTH_BYTES:].tobytes(), file_bytes=file.size, label=file.path).tensors
    if len(tensors) != len(file.pieces):
        raise CheckpointError(f"{file.path}: has {len(file.pieces)} pieces for {len(tensors)} tensors")
    for tensor, (stream, offset) in zip(tensors.values(), file.pieces, strict=True):
        if tensor.dtype == WIDE and stream in NARROW:
            yield widened(stream, WIDE, _slice(streams, stream, offset, tensor.byte_count // 2, file.path))
        else:
            yield _slice(streams, stream, offset, tensor.byte_count, file.path)


def _slice(streams: Mapping[str, Bytes], name: str, begin: int, length: int, label: str) -> Bytes:
    if name not in streams or begin + length > len(streams[name]):
        raise CheckpointError(f"{label}: wants bytes of stream {name} that are not there")
    return streams[name][begin : begin + length]
