"""Stored sizes, and decoding on one core against plain Zstandard and memcpy."""

from __future__ import annotations

import shutil
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import zstandard

from vflash_adapters.weights.byte_file import Bytes
from vflash_adapters.weights.checkpoint import read_shard
from vflash_adapters.weights.sidecar.blocks import DEFAULT_BLOCK, plan_blocks
from vflash_adapters.weights.sidecar.codec import BlockDecoder, BlockEncoder
from vflash_adapters.weights.sidecar.inspect import inspect
from vflash_adapters.weights.sidecar.merges import MergeChoice, make_merge
from vflash_adapters.weights.sidecar.prepare import prepare
from weights_bench.timing import interleaved, rates, ratio

BYTES = 48 * 2**20


def stored_sizes(path: Path, scratch: Path, dtype: str) -> dict[str, Any]:
    """Ratio of the dtype's own bytes, and of the whole file."""
    shutil.rmtree(scratch, ignore_errors=True)
    done = prepare(path, scratch)
    found = inspect(scratch)["components"]["."]
    return {
        "dtype_ratio": found["dtypes"][dtype]["ratio"],
        "file_ratio": round(done.stored_bytes / done.source_bytes, 4),
    }


def decode_speed(path: Path, repeats: int) -> dict[str, Any]:
    """One core: decode and merge of every merge, plain level 3 of the same bytes, and a copy of the same size.

    In processor seconds of one thread, so that neighbours on the machine do not count.
    """
    blocks, plain = _blocks(path)
    output = np.empty(DEFAULT_BLOCK, dtype=np.uint8)
    total = sum(len(piece) for piece in plain)
    source, target = (np.ones(64 * 2**20, dtype=np.uint8) for _ in range(2))
    cases: dict[str, Any] = {}
    for choice in MergeChoice:
        merge = make_merge(choice)
        encoder, decoder = BlockEncoder(merge), BlockDecoder(merge)
        records = [encoder.encode(block, piece) for block, piece in zip(blocks, plain, strict=True)]
        joined = [(np.concatenate(record.parts), record.row) for record in records]

        def decode(decoder: BlockDecoder = decoder, joined: Any = joined) -> None:
            for block, (record, row) in zip(blocks, joined, strict=True):
                decoder.decode(block, row, record, output[: block.length], "bench")

        cases[choice.value] = decode
    compressor, decompressor = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
    frames = [compressor.compress(piece.tobytes()) for piece in plain]

    def plain_zstd() -> None:
        for frame in frames:
            with decompressor.stream_reader(frame) as reader:
                reader.readinto(output)

    def copy() -> None:
        for _ in range(max(1, total // source.nbytes)):
            target[:] = source

    cases |= {"plain zstd 3": plain_zstd, "memcpy": copy}
    seconds = interleaved(cases, repeats, clock=thread_time)
    copied = max(1, total // source.nbytes) * source.nbytes
    seconds["memcpy"] = [value * total / copied for value in seconds["memcpy"]]
    return {
        "rates": rates(seconds, total),
        "numba_over_plain_zstd_3": ratio(seconds, "numba", "plain zstd 3"),
        "numba_over_memcpy": ratio(seconds, "numba", "memcpy"),
        "numpy_over_plain_zstd_3": ratio(seconds, "numpy", "plain zstd 3"),
    }


def _blocks(path: Path) -> tuple[list[Any], list[Bytes]]:
    header = read_shard(path).header
    blocks = [block for block in plan_blocks(header, DEFAULT_BLOCK) if block.planes and block.length == DEFAULT_BLOCK]
    blocks = blocks[: BYTES // DEFAULT_BLOCK]
    content = np.memmap(path, dtype=np.uint8, mode="r")
    return blocks, [np.array(content[block.begin : block.begin + block.length]) for block in blocks]
