"""Shard bytes decoded from a sidecar, straight into the memory they are wanted in."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from vflash_adapters.weights.buffered_source import OpenFile
from vflash_adapters.weights.byte_file import ALIGNMENT, ByteFile, Bytes, aligned_bytes, round_up
from vflash_adapters.weights.checkpoint import Checkpoint, close_all, open_shards
from vflash_adapters.weights.file_identity import FileIdentity, check_unchanged, identity_of, open_descriptor
from vflash_adapters.weights.read_workers import ReadWorkers
from vflash_adapters.weights.sidecar.codec import BlockDecoder
from vflash_adapters.weights.sidecar.planes import PlaneMerge
from vflash_adapters.weights.sidecar.sidecar_manifest import SidecarManifest, SidecarShard
from vflash_ports.errors import CheckpointError

RUN_BYTES = 6 * 2**20  # stored bytes that one worker reads at a time: 8 blocks of BF16


@frozen
class _Run:
    """Blocks [first, last) of a shard, neighbours in the data file."""

    first: int
    last: int


class SidecarPayload:
    """Owns descriptors, threads, record buffers and decoders; `close` gives all of them back.

    Memory beyond the destination is one record buffer and one coded plane per worker.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        manifest: SidecarManifest,
        folder: Path,
        workers: ReadWorkers,
        merge: PlaneMerge,
        open_file: OpenFile,
    ) -> None:
        self._checkpoint = checkpoint
        self._manifest = manifest
        self._paths = [folder / shard.data_file for shard in manifest.shards]
        self._workers = workers
        self._open_file = open_file
        self._files: dict[int, ByteFile] = {}
        self._records = [aligned_bytes(RUN_BYTES + 3 * ALIGNMENT) for _ in range(workers.count)]
        self._decoders = [BlockDecoder(merge) for _ in range(workers.count)]
        self._begins = [[block.begin for block in shard.blocks] for shard in manifest.shards]
        self._originals = open_shards(checkpoint)
        self._data: list[int] = []
        self._identities: list[FileIdentity] = []
        try:
            self._open_data()
        except BaseException:
            self.close()
            raise

    def fill(self, shard: int, begin: int, out: Bytes) -> None:
        held = self._manifest.shards[shard]
        first = bisect_left(self._begins[shard], begin)
        last = bisect_left(self._begins[shard], begin + len(out))
        assert first == last or self._begins[shard][first] == begin  # whole tensors only
        file = self._file(shard)

        def decode(slot: int, run: _Run) -> None:
            self._decode_run(slot, held, file, run, begin, out)

        self._workers.run(_runs(held, first, last), decode)

    def check_unchanged(self) -> None:
        for shard, descriptor in zip(self._checkpoint.shards, self._originals, strict=True):
            check_unchanged(descriptor, shard.identity, shard.path)
        for path, identity, descriptor in zip(self._paths, self._identities, self._data, strict=True):
            check_unchanged(descriptor, identity, path)

    def read_modes(self) -> Mapping[str, str]:
        return {self._paths[number].name: file.mode for number, file in self._files.items()}

    def close(self) -> None:
        self._workers.close()
        self._files.clear()
        self._records.clear()
        self._decoders.clear()
        close_all(self._originals)
        close_all(self._data)

    def _open_data(self) -> None:
        for path, shard in zip(self._paths, self._manifest.shards, strict=True):
            self._data.append(open_descriptor(path))
            self._identities.append(identity_of(self._data[-1]))
            if self._identities[-1].size != shard.data_bytes:
                raise CheckpointError(
                    f"{path}: holds {self._identities[-1].size} bytes, expected {shard.data_bytes}; prepare it again"
                )

    def _file(self, shard: int) -> ByteFile:
        if shard not in self._files:
            self._files[shard] = self._open_file(self._data[shard], self._paths[shard])
        return self._files[shard]

    def _decode_run(self, slot: int, shard: SidecarShard, file: ByteFile, run: _Run, begin: int, out: Bytes) -> None:
        start = shard.offsets[run.first] // ALIGNMENT * ALIGNMENT
        window = self._window(slot, round_up(shard.offsets[run.last]) - start)
        file.read_into(start, window, window)  # aligned at both ends: a direct read needs no scratch
        for number in range(run.first, run.last):
            block, row = shard.blocks[number], shard.rows[number]
            record = window[shard.offsets[number] - start : shard.offsets[number + 1] - start]
            target = out[block.begin - begin : block.begin - begin + block.length]
            self._decoders[slot].decode(block, row, record, target, shard.data_file)

    def _window(self, slot: int, length: int) -> Bytes:
        return self._records[slot][:length]


def _runs(shard: SidecarShard, first: int, last: int) -> list[_Run]:
    """Consecutive blocks of at most `RUN_BYTES` stored bytes together; a block is never larger than that."""
    runs = []
    while first < last:
        stop = first + 1
        while stop < last and shard.offsets[stop + 1] - shard.offsets[first] <= RUN_BYTES:
            stop += 1
        runs.append(_Run(first, stop))
        first = stop
    return runs
