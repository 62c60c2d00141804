"""Proof that a sidecar still decodes to its original, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from attrs import frozen

from vflash_adapters.weights.byte_file import REQUEST_BYTES, Bytes, CachedFile, choose_file
from vflash_adapters.weights.checkpoint import Checkpoint, close_all, open_shards
from vflash_adapters.weights.read_workers import ReadWorkers, checked_count
from vflash_adapters.weights.sidecar.codec import digest
from vflash_adapters.weights.sidecar.components import component_folder, read_components
from vflash_adapters.weights.sidecar.merges import MergeChoice, make_merge
from vflash_adapters.weights.sidecar.payload import SidecarPayload
from vflash_adapters.weights.sidecar.planes import PlaneMerge
from vflash_adapters.weights.sidecar.sidecar_manifest import SidecarShard, read_manifest
from vflash_ports.errors import CheckpointError
from vflash_ports.observer import Observer, SilentObserver


@frozen(kw_only=True)
class Verified:
    """What was compared."""

    components: tuple[str, ...]
    byte_count: int
    blocks: int


def verify(
    source: Path,
    sidecar: Path,
    *,
    workers: int = 2,
    merge: MergeChoice = MergeChoice.NUMBA,
    observer: Observer | None = None,
) -> Verified:
    """Decode every block and compare it with the original's bytes and with the digest taken while preparing.

    Raises `CheckpointError` at the first difference, naming the file and the byte. Progress is in bytes of the
    original, stage "verify".
    """
    checked_count(workers, name="workers")
    watched = observer or SilentObserver()
    components = read_components(source)
    folders = {name: component_folder(sidecar, source / name) for name in components}
    total = sum(shard.identity.size for checkpoint in components.values() for shard in checkpoint.shards)
    done = blocks = 0
    for name, checkpoint in components.items():
        for byte_count, block_count in _compare(checkpoint, folders[name], workers, make_merge(merge)):
            done, blocks = done + byte_count, blocks + block_count
            watched.progress("verify", done, total)
    return Verified(components=tuple(name or "." for name in components), byte_count=done, blocks=blocks)


def _compare(checkpoint: Checkpoint, folder: Path, workers: int, merge: PlaneMerge) -> Iterator[tuple[int, int]]:
    manifest = read_manifest(folder, checkpoint)
    payload = SidecarPayload(checkpoint, manifest, folder, ReadWorkers(workers), merge, choose_file)
    try:
        descriptors = open_shards(checkpoint)
        try:
            for number, shard in enumerate(manifest.shards):
                original = CachedFile(descriptors[number], checkpoint.shards[number].path)
                yield checkpoint.shards[number].header.data_start, 0
                yield from _compare_shard(number, shard, payload, original, str(folder / shard.data_file))
        finally:
            close_all(descriptors)
        payload.check_unchanged()
    finally:
        payload.close()


def _compare_shard(
    number: int, shard: SidecarShard, payload: SidecarPayload, original: CachedFile, label: str
) -> Iterator[tuple[int, int]]:
    decoded, plain = np.empty(REQUEST_BYTES, dtype=np.uint8), np.empty(REQUEST_BYTES, dtype=np.uint8)
    for first, last in _batches(shard):
        begin = shard.blocks[first].begin
        length = shard.blocks[last - 1].begin + shard.blocks[last - 1].length - begin
        payload.fill(number, begin, decoded[:length])
        original.read_into(begin, plain[:length], plain)
        _compare_blocks(shard, range(first, last), decoded[:length], plain[:length], label)
        yield length, last - first


def _batches(shard: SidecarShard) -> Iterator[tuple[int, int]]:
    """Runs of blocks whose plain bytes fit `REQUEST_BYTES`."""
    first = 0
    for number in range(1, len(shard.blocks) + 1):
        is_end = number == len(shard.blocks)
        if (
            is_end
            or shard.blocks[number].begin + shard.blocks[number].length - shard.blocks[first].begin > REQUEST_BYTES
        ):
            yield first, number
            first = number


def _compare_blocks(shard: SidecarShard, numbers: range, decoded: Bytes, plain: Bytes, label: str) -> None:
    start = shard.blocks[numbers.start].begin
    for number in numbers:
        block, row = shard.blocks[number], shard.rows[number]
        piece = slice(block.begin - start, block.begin - start + block.length)
        if not np.array_equal(decoded[piece], plain[piece]):
            raise CheckpointError(
                f"{label}: differs from its original at block of byte {block.begin}; prepare it again"
            )
        if digest(plain[piece]) != row.plain_xxh3:
            raise CheckpointError(f"{label}: original and sidecar changed together at byte {block.begin}")
