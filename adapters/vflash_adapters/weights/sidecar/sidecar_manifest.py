"""The manifest of a sidecar: which files it stands for, and how each of their blocks is stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from types import NoneType
from typing import Any

from attrs import field, frozen

from vflash_adapters.manifest import Fields, ManifestKind, read_sealed, require_fields, write_sealed
from vflash_adapters.strict_json import brief
from vflash_adapters.weights.byte_file import round_up
from vflash_adapters.weights.checkpoint import Checkpoint, Shard
from vflash_adapters.weights.sidecar.blocks import Block, checked_block_bytes, plan_blocks
from vflash_adapters.weights.sidecar.codec import Row
from vflash_adapters.weights.sidecar.planes import Planes
from vflash_ports.errors import CheckpointError, ContractError

MANIFEST_NAME = "manifest.json"
KIND = ManifestKind(format="vflash-weight-sidecar", version=1, max_bytes=64 * 2**20)
BODY_FIELDS: Fields = {"writer": dict, "block_bytes": int, "index_sha256": (str, NoneType), "shards": list}
SHARD_FIELDS: Fields = {"source": dict, "data": dict, "dtypes": dict, "rows": list}
_DIGEST = re.compile(r"[0-9a-f]{16}")


@frozen(kw_only=True)
class SourceStamp:
    """What binds a data file to its original. The header's digest fixes names, dtypes and offsets."""

    file: str
    size: int
    mtime_ns: int
    header_sha256: str


@frozen(kw_only=True)
class SidecarShard:
    """One data file: `blocks` and `rows` in payload order, `offsets` where each record begins in the data file."""

    source: SourceStamp
    data_file: str
    data_bytes: int
    blocks: tuple[Block, ...] = field(repr=False)
    rows: tuple[Row, ...] = field(repr=False)
    offsets: tuple[int, ...] = field(repr=False)


@frozen(kw_only=True)
class SidecarManifest:
    writer: Mapping[str, str]
    block_bytes: int
    index_sha256: str | None
    shards: tuple[SidecarShard, ...]


def stamp_of(shard: Shard) -> SourceStamp:
    return SourceStamp(
        file=shard.path.name,
        size=shard.identity.size,
        mtime_ns=shard.identity.mtime_ns,
        header_sha256=shard.header_sha256,
    )


def write_manifest(folder: Path, manifest: SidecarManifest) -> None:
    """Seal `manifest` into `folder`."""
    body = {
        "writer": dict(manifest.writer),
        "block_bytes": manifest.block_bytes,
        "index_sha256": manifest.index_sha256,
        "shards": [_shard_body(shard) for shard in manifest.shards],
    }
    write_sealed(folder / MANIFEST_NAME, KIND, body)


def read_manifest(folder: Path, checkpoint: Checkpoint) -> SidecarManifest:
    """The manifest in `folder`, checked against the originals it must stand for.

    Raises `CheckpointError` if it is missing, altered, or made from other files than those of `checkpoint`.
    """
    path = folder / MANIFEST_NAME
    body = read_sealed(path, KIND, BODY_FIELDS)
    try:
        block_bytes = checked_block_bytes(body["block_bytes"])
    except ContractError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if body["index_sha256"] != (checkpoint.index.sha256 if checkpoint.index else None):
        raise CheckpointError(f"{path}: was prepared with another index than {checkpoint.path} has; prepare it again")
    if len(body["shards"]) != len(checkpoint.shards):
        raise CheckpointError(f"{path}: stands for {len(body['shards'])} files, but there are {len(checkpoint.shards)}")
    shards = tuple(
        _shard(value, number, shard, block_bytes, f"{path}: shard {number}")
        for number, (value, shard) in enumerate(zip(body["shards"], checkpoint.shards, strict=True))
    )
    return SidecarManifest(
        writer=body["writer"], block_bytes=block_bytes, index_sha256=body["index_sha256"], shards=shards
    )


def data_file_name(number: int) -> str:
    return f"shard-{number:05d}.bin"


def record_offsets(blocks: tuple[Block, ...], rows: tuple[Row, ...]) -> tuple[int, ...]:
    """Where each record begins, and after the last one the end: `len(blocks) + 1` numbers."""
    sizes = (row.record_bytes(block) for block, row in zip(blocks, rows, strict=True))
    return tuple(accumulate(sizes, initial=0))


def dtype_totals(blocks: tuple[Block, ...], rows: tuple[Row, ...]) -> dict[str, list[int]]:
    """Stored dtype -> [bytes of the originals, bytes of their records]."""
    totals: dict[str, list[int]] = {}
    for block, row in zip(blocks, rows, strict=True):
        entry = totals.setdefault(block.dtype, [0, 0])
        entry[0] += block.length
        entry[1] += row.record_bytes(block)
    return totals


def _shard_body(shard: SidecarShard) -> dict[str, Any]:
    source = shard.source
    return {
        "source": {
            "file": source.file,
            "size": source.size,
            "mtime_ns": source.mtime_ns,
            "header_sha256": source.header_sha256,
        },
        "data": {"file": shard.data_file, "size": shard.data_bytes},
        "dtypes": dtype_totals(shard.blocks, shard.rows),
        "rows": [[row.coded, row.window, row.stored_xxh3, row.plain_xxh3] for row in shard.rows],
    }


def _shard(value: Any, number: int, shard: Shard, block_bytes: int, label: str) -> SidecarShard:
    body = require_fields(value, SHARD_FIELDS, label)
    source = _source(body["source"], shard, label)
    data = require_fields(body["data"], {"file": str, "size": int}, label)
    blocks = tuple(plan_blocks(shard.header, block_bytes))
    if len(body["rows"]) != len(blocks):
        raise CheckpointError(f"{label}: has {len(body['rows'])} blocks, expected {len(blocks)}; prepare it again")
    rows = tuple(_row(row, block, label) for row, block in zip(body["rows"], blocks, strict=True))
    offsets = record_offsets(blocks, rows)
    if body["dtypes"] != dtype_totals(blocks, rows):
        raise CheckpointError(f"{label}: its totals do not match its blocks; prepare it again")
    if data != {"file": data_file_name(number), "size": round_up(offsets[-1])}:
        raise CheckpointError(f"{label}: its data file does not match its blocks; prepare it again")
    return SidecarShard(
        source=source, data_file=data["file"], data_bytes=data["size"], blocks=blocks, rows=rows, offsets=offsets
    )


def _source(value: Any, shard: Shard, label: str) -> SourceStamp:
    fields = require_fields(value, {"file": str, "size": int, "mtime_ns": int, "header_sha256": str}, label)
    found, expected = SourceStamp(**fields), stamp_of(shard)
    if found != expected:
        differing = [name for name in fields if getattr(found, name) != getattr(expected, name)]
        raise CheckpointError(
            f"{label}: was prepared from another {shard.path.name} ({', '.join(differing)} differ); prepare it again"
        )
    return found


def _row(value: Any, block: Block, label: str) -> Row:
    shaped = isinstance(value, list) and len(value) == 4 and all(type(count) is int for count in value[:2])
    if not shaped or not all(isinstance(text, str) and _DIGEST.fullmatch(text) for text in value[2:]):
        raise CheckpointError(f"{label}: not a block row: {brief(value)}")
    coded, window = value[:2]
    if not 0 <= coded <= block.coded_plain:
        raise CheckpointError(f"{label}: block at byte {block.begin} cannot have a frame of {coded} bytes")
    if window and not (coded and block.planes is Planes.BF16 and 0 < window <= block.coded_plain):
        raise CheckpointError(f"{label}: block at byte {block.begin} cannot have a window of {window} bytes")
    return Row(coded=coded, window=window, stored_xxh3=value[2], plain_xxh3=value[3])
