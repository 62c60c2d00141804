"""The manifest of a packed folder: its files, where each of their parts is, and how the parts' streams are stored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from attrs import field, frozen

from vflash_adapters.manifest import ManifestKind, read_sealed, require_fields, write_sealed
from vflash_adapters.weights.sidecar.blocks import Block
from vflash_adapters.weights.sidecar.codec import Row
from vflash_adapters.weights.sidecar.planes import PLANES_BY_DTYPE, Planes
from vflash_ports.errors import CheckpointError

MANIFEST_NAME, PAYLOAD_NAME = "manifest.json", "payload.bin"
KIND = ManifestKind(format="vflash-packed-folder", version=1, max_bytes=8 * 2**20)
PLAIN = "plain"
"""The stream of everything that is no coded tensor: configs, tokenizers, headers, odd dtypes."""
BLOCK_BYTES = 2**18
MAX_UNPACKED = 2**30
_PATH = re.compile(r"(?!\.)[\w.-]+(/(?!\.)[\w.-]+)*")
_SHA256, _XXH3 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{16}")


@frozen(kw_only=True)
class PackedFile:
    """`head` bytes [begin, end) of the plain stream, then `pieces`: the stream and the offset of each tensor."""

    path: str
    size: int
    sha256: str
    head: tuple[int, int]
    pieces: tuple[tuple[str, int], ...] = field(repr=False)


@frozen(kw_only=True)
class Stream:
    """`length` plain bytes, cut into blocks of `BLOCK_BYTES`, a row each."""

    name: str
    length: int
    rows: tuple[Row, ...] = field(repr=False)

    def blocks(self) -> list[Block]:
        return stream_blocks(self.name, self.length)


@frozen(kw_only=True)
class PackedManifest:
    """`identity` is the digest of the whole manifest, and so of everything that is packed."""

    files: tuple[PackedFile, ...]
    streams: tuple[Stream, ...]
    identity: str


def stream_blocks(name: str, length: int) -> list[Block]:
    planes = PLANES_BY_DTYPE.get(name)
    return [
        Block(begin=begin, length=min(BLOCK_BYTES, length - begin), dtype=name, planes=planes)
        for begin in range(0, length, BLOCK_BYTES)
    ]


def write_manifest(folder: Path, files: list[PackedFile], streams: list[Stream]) -> None:
    body = {
        "files": [
            {
                "path": f.path,
                "size": f.size,
                "sha256": f.sha256,
                "head": list(f.head),
                "pieces": list(map(list, f.pieces)),
            }
            for f in files
        ],
        "streams": [
            {
                "name": s.name,
                "length": s.length,
                "rows": [[r.coded, r.window, r.stored_xxh3, r.plain_xxh3] for r in s.rows],
            }
            for s in streams
        ],
    }
    write_sealed(folder / MANIFEST_NAME, KIND, body)


def read_manifest(packed: Path) -> PackedManifest:
    """Raises `CheckpointError` for a manifest that is missing, altered, too large to unpack, or leaves its folder."""
    path = packed / MANIFEST_NAME
    body = read_sealed(path, KIND, {"files": list, "streams": list})
    files = tuple(_file(value, f"{path}: file {number}") for number, value in enumerate(body["files"]))
    streams = tuple(_stream(value, f"{path}: stream {number}") for number, value in enumerate(body["streams"]))
    if sum(file.size for file in files) > MAX_UNPACKED or sum(stream.length for stream in streams) > MAX_UNPACKED:
        raise CheckpointError(f"{path}: unpacks to more than the {MAX_UNPACKED} bytes allowed")
    return PackedManifest(files=files, streams=streams, identity=hashlib.sha256(path.read_bytes()).hexdigest())


def record_offsets(streams: tuple[Stream, ...]) -> Mapping[str, list[int]]:
    """Where in the payload each stream's records begin, and after its last one the end."""
    found: dict[str, list[int]] = {}
    begin = 0
    for stream in streams:
        sizes = (row.record_bytes(block) for block, row in zip(stream.blocks(), stream.rows, strict=True))
        found[stream.name] = list(accumulate(sizes, initial=begin))
        begin = found[stream.name][-1]
    return found


def _file(value: Any, label: str) -> PackedFile:
    fields = require_fields(value, {"path": str, "size": int, "sha256": str, "head": list, "pieces": list}, label)
    if not _PATH.fullmatch(fields["path"]) or not _SHA256.fullmatch(fields["sha256"]) or fields["size"] < 0:
        raise CheckpointError(f"{label}: not a file of a packed folder: {fields['path']!r}")
    head, pieces = fields["head"], fields["pieces"]
    if len(head) != 2 or not all(type(number) is int for number in head) or not 0 <= head[0] <= head[1]:
        raise CheckpointError(f"{label}: has no valid head")
    shaped = all(isinstance(p, list) and len(p) == 2 and type(p[0]) is str and type(p[1]) is int for p in pieces)
    if not shaped or any(offset < 0 for _, offset in pieces):
        raise CheckpointError(f"{label}: has a piece that is no stream and offset")
    return PackedFile(**{**fields, "head": (head[0], head[1]), "pieces": tuple(map(tuple, pieces))})


def _stream(value: Any, label: str) -> Stream:
    fields = require_fields(value, {"name": str, "length": int, "rows": list}, label)
    if not 0 <= fields["length"] <= MAX_UNPACKED:
        raise CheckpointError(f"{label}: cannot have {fields['length']} bytes")
    blocks = stream_blocks(fields["name"], fields["length"])
    if len(blocks) != len(fields["rows"]):
        raise CheckpointError(f"{label}: has {len(fields['rows'])} rows for {len(blocks)} blocks")
    rows = tuple(_row(row, block, label) for row, block in zip(fields["rows"], blocks, strict=True))
    return Stream(name=fields["name"], length=fields["length"], rows=rows)


def _row(value: Any, block: Block, label: str) -> Row:
    shaped = isinstance(value, list) and len(value) == 4 and all(type(count) is int for count in value[:2])
    if not shaped or not all(isinstance(text, str) and _XXH3.fullmatch(text) for text in value[2:]):
        raise CheckpointError(f"{label}: has a row that describes no block")
    row = Row(coded=value[0], window=value[1], stored_xxh3=value[2], plain_xxh3=value[3])
    windowed = row.coded and block.planes is Planes.BF16 and 0 < row.window <= block.coded_plain
    if not 0 <= row.coded <= block.coded_plain or (row.window and not windowed):
        raise CheckpointError(f"{label}: block at byte {block.begin} cannot have such a record")
    return row
