"""Writing a sidecar: read, take apart, code, prove, write; the manifest last."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from threading import local
from typing import BinaryIO

import numpy as np
from attrs import frozen

from vflash_adapters.arguments import path_argument
from vflash_adapters.publish import new_directory, refuse_existing
from vflash_adapters.weights.byte_file import ALIGNMENT, Bytes, CachedFile, round_up
from vflash_adapters.weights.checkpoint import Checkpoint, Shard, close_all, open_shards
from vflash_adapters.weights.file_identity import check_unchanged
from vflash_adapters.weights.read_workers import checked_count
from vflash_adapters.weights.sidecar.blocks import DEFAULT_BLOCK, Block, checked_block_bytes, plan_blocks
from vflash_adapters.weights.sidecar.codec import BlockEncoder, Record, Row, codec_versions, digest
from vflash_adapters.weights.sidecar.components import read_components
from vflash_adapters.weights.sidecar.merges import MergeChoice, make_merge
from vflash_adapters.weights.sidecar.planes import PlaneMerge
from vflash_adapters.weights.sidecar.sidecar_manifest import (
    SidecarManifest,
    SidecarShard,
    data_file_name,
    record_offsets,
    stamp_of,
    write_manifest,
)
from vflash_ports.errors import CheckpointError, ContractError
from vflash_ports.observer import Observer, SilentObserver

BATCH_BYTES = 8 * 2**20  # one task reads, codes and proves this much


@frozen(kw_only=True)
class Prepared:
    """What was written, for the report."""

    sidecar: Path
    source_bytes: int
    stored_bytes: int


def prepare(
    source: Path,
    sidecar: Path,
    *,
    workers: int = 2,
    block_bytes: int = DEFAULT_BLOCK,
    merge: MergeChoice = MergeChoice.NUMBA,
    observer: Observer | None = None,
) -> Prepared:
    """Compress `source` (a safetensors file, index, component folder or model folder) into the new folder `sidecar`.

    The original is only read, stays needed (headers, roll-back) and is compared with every decoded block. `sidecar`
    appears complete or not at all; what a killed run left behind is removed by the next. Progress is reported in
    bytes of the original as stage "sidecar"; an observer that raises stops the work.

    Raises `ContractError` for a bad option or an existing `sidecar`, `CheckpointError` for a source that is not what
    it must be or changes meanwhile, `BusyError` while another process prepares the same folder.
    """
    source, sidecar = path_argument("source", source), path_argument("sidecar", sidecar)
    chosen = make_merge(merge)
    checked_count(workers, name="workers")
    checked_block_bytes(block_bytes)
    watched = SilentObserver() if observer is None else observer
    if not callable(getattr(watched, "progress", None)):
        raise ContractError(f"observer: expected an Observer, or None, got a {type(observer).__name__}")
    refuse_existing(sidecar)
    components = read_components(source)
    run = _Run(
        writer={"vflash": version("vflash"), "merge": chosen.name, **codec_versions()},
        block_bytes=block_bytes,
        merge=chosen,
        total=sum(shard.identity.size for checkpoint in components.values() for shard in checkpoint.shards),
        observer=watched,
    )
    with new_directory(sidecar) as work, ThreadPoolExecutor(workers, thread_name_prefix="vflash-code") as threads:
        stored = sum(
            _write_component(run, checkpoint, work / name, threads, 2 * workers)
            for name, checkpoint in components.items()
        )
    return Prepared(sidecar=sidecar, source_bytes=run.total, stored_bytes=stored)


class _Run:
    """One preparation: its options, progress and per-thread encoders."""

    def __init__(
        self, *, writer: Mapping[str, str], block_bytes: int, merge: PlaneMerge, total: int, observer: Observer
    ) -> None:
        self.writer = writer
        self.block_bytes = block_bytes
        self.merge = merge
        self.total = total
        self._observer = observer
        self._done = 0
        self._local = local()

    def encoder(self) -> BlockEncoder:
        if not hasattr(self._local, "encoder"):
            self._local.encoder = BlockEncoder(self.merge)
        encoder: BlockEncoder = self._local.encoder
        return encoder

    def advance(self, byte_count: int) -> None:
        self._done += byte_count
        self._observer.progress("sidecar", self._done, self.total)


def _write_component(run: _Run, checkpoint: Checkpoint, folder: Path, threads: ThreadPoolExecutor, window: int) -> int:
    folder.mkdir(exist_ok=True)
    descriptors = open_shards(checkpoint)
    try:
        shards = []
        for number, (shard, descriptor) in enumerate(zip(checkpoint.shards, descriptors, strict=True)):
            shards.append(_write_shard(run, shard, descriptor, folder / data_file_name(number), threads, window))
        for shard, descriptor in zip(checkpoint.shards, descriptors, strict=True):
            check_unchanged(descriptor, shard.identity, shard.path)
    finally:
        close_all(descriptors)
    manifest = SidecarManifest(
        writer=run.writer,
        block_bytes=run.block_bytes,
        index_sha256=checkpoint.index.sha256 if checkpoint.index else None,
        shards=tuple(shards),
    )
    write_manifest(folder, manifest)
    return sum(shard.data_bytes for shard in shards)


def _write_shard(
    run: _Run, shard: Shard, descriptor: int, path: Path, threads: ThreadPoolExecutor, window: int
) -> SidecarShard:
    blocks = tuple(plan_blocks(shard.header, run.block_bytes))
    source = CachedFile(descriptor, shard.path)

    def encode(batch: list[Block]) -> list[Record]:
        return [run.encoder().encode(block, _read(source, block.begin, block.length)) for block in batch]

    rows: list[Row] = []
    run.advance(shard.header.data_start)
    with path.open("xb") as file:
        for batch, records in _in_order(threads, encode, _batches(blocks), window):
            for record in records:
                file.writelines(part.data for part in record.parts)
                rows.append(record.row)
            run.advance(sum(block.length for block in batch))
        _finish_data_file(file)
    offsets = record_offsets(blocks, tuple(rows))
    _check_stored(path, blocks, rows)
    return SidecarShard(
        source=stamp_of(shard),
        data_file=path.name,
        data_bytes=round_up(offsets[-1]),
        blocks=blocks,
        rows=tuple(rows),
        offsets=offsets,
    )


def _batches(blocks: tuple[Block, ...]) -> Iterator[list[Block]]:
    batch: list[Block] = []
    for block in blocks:
        batch.append(block)
        if sum(held.length for held in batch) >= BATCH_BYTES or len(batch) == 256:
            yield batch
            batch = []
    if batch:
        yield batch


def _in_order(
    threads: ThreadPoolExecutor,
    encode: Callable[[list[Block]], list[Record]],
    batches: Iterable[list[Block]],
    window: int,
) -> Iterator[tuple[list[Block], list[Record]]]:
    """Batches with their records, in order, at most `window` of them in work or waiting."""
    waiting: deque[tuple[list[Block], Future[list[Record]]]] = deque()
    try:
        for batch in batches:
            waiting.append((batch, threads.submit(encode, batch)))
            if len(waiting) == window:
                done, future = waiting.popleft()
                yield done, future.result()
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result()
    finally:
        for _, future in waiting:
            future.cancel()


def _finish_data_file(file: BinaryIO) -> None:
    """Pad to a whole page, so that direct reads may end anywhere; then onto the disk and out of the cache."""
    file.write(b"\0" * (-file.tell() % ALIGNMENT))
    file.flush()
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _check_stored(path: Path, blocks: tuple[Block, ...], rows: list[Row]) -> None:
    """Read back what the disk holds now; every record must still have its digest."""
    with path.open("rb", buffering=0) as file:
        stored = CachedFile(file.fileno(), path)
        offset = 0
        for block, row in zip(blocks, rows, strict=True):
            record = _read(stored, offset, row.record_bytes(block))
            if digest(record) != row.stored_xxh3:
                raise CheckpointError(f"{path}: the disk returned other bytes than were written; is it healthy?")
            offset += len(record)


def _read(file: CachedFile, offset: int, length: int) -> Bytes:
    out = np.empty(length, dtype=np.uint8)
    file.read_into(offset, out, out)
    return out
