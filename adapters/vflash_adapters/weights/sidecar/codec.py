"""One block to a record and back: [zstd frame of the coded plane][raw plane][exponent window], or the plain bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen

from vflash_adapters.weights.byte_file import Bytes
from vflash_adapters.weights.sidecar.blocks import MAX_BLOCK, Block
from vflash_adapters.weights.sidecar.pairs import pack_pairs, pair_bytes, read_window
from vflash_adapters.weights.sidecar.planes import PlaneMerge, PlanePair, Planes, split
from vflash_ports.errors import CheckpointError, UnsupportedError

MIN_SAVING = 0.03  # a block that saves less is stored plain
MAX_OUTSIDE = 0.005  # of exponents outside a window; listing more would cost 1 % of the block


@frozen(kw_only=True)
class Row:
    """What the manifest says of one block: `coded` bytes of its frame, 0 if it is stored plain; `window` bytes of its
    exponent window, 0 if exponents are coded whole; xxh3-64 digests."""

    coded: int
    window: int
    stored_xxh3: str
    plain_xxh3: str

    def record_bytes(self, block: Block) -> int:
        return self.coded + block.length - block.coded_plain + self.window if self.coded else block.length


@frozen(kw_only=True, eq=False)
class Record:
    parts: tuple[Bytes, ...]
    row: Row


class BlockEncoder:
    """Encodes blocks and proves each by decoding it again. One thread at a time."""

    def __init__(self, merge: PlaneMerge) -> None:
        zstd = _zstandard()
        # a starved match finder: practically Huffman literals only, which is smaller and twice as fast to decode than
        # levels 3 to 9 on exponent planes, and any zstd decoder reads it
        parameters = zstd.ZstdCompressionParameters.from_level(
            1, min_match=7, hash_log=6, strategy=zstd.STRATEGY_FAST, write_checksum=1, write_content_size=1
        )
        self._compressor = zstd.ZstdCompressor(compression_params=parameters)
        self._decoder = BlockDecoder(merge)
        self._proof = np.empty(MAX_BLOCK, dtype=np.uint8)

    def encode(self, block: Block, plain: Bytes) -> Record:
        """`plain` is not kept and not changed. Raises `CheckpointError` if the record does not decode to `plain`."""
        if block.planes is None:
            return _plain_record(plain)
        frame, raw, window = self._smallest(block.planes, split(block.planes, plain))
        parts = (frame, raw, window)
        if sum(map(len, parts)) > (1 - MIN_SAVING) * block.length:
            return _plain_record(plain)
        row = Row(coded=len(frame), window=len(window), stored_xxh3=digest(*parts), plain_xxh3=digest(plain))
        proof = self._proof[: block.length]
        self._decoder.decode(block, row, np.concatenate(parts), proof, "the block just encoded")
        if not np.array_equal(proof, plain):
            raise CheckpointError(f"block at byte {block.begin} did not decode to its original; is the memory healthy?")
        return Record(parts=parts, row=row)

    def _smallest(self, planes: Planes, pair: PlanePair) -> tuple[Bytes, Bytes, Bytes]:
        """Frame, raw plane and window. BF16 exponents become pairs unless too many lie outside of any window."""
        if planes is Planes.BF16:
            pairs, window = pack_pairs(pair.coded)
            if len(window.positions) <= MAX_OUTSIDE * len(pair.coded):
                return self._frame(pairs), pair.raw, window.to_bytes()
        return self._frame(pair.coded), pair.raw, np.empty(0, dtype=np.uint8)

    def _frame(self, plane: Bytes) -> Bytes:
        return np.frombuffer(self._compressor.compress(plane), dtype=np.uint8)


class BlockDecoder:
    """Decodes blocks into memory that somebody else owns. One thread at a time."""

    def __init__(self, merge: PlaneMerge) -> None:
        self._zstd = _zstandard()
        self._merge = merge
        self._decompressor = self._zstd.ZstdDecompressor(max_window_size=MAX_BLOCK)
        self._coded = np.empty(MAX_BLOCK // 2, dtype=np.uint8)  # pages are touched only as far as blocks need

    def decode(self, block: Block, row: Row, record: Bytes, out: Bytes, label: str) -> None:
        """Fill `out` [block.length] from `record`; raises `CheckpointError` for anything but the bytes it was made of.

        The record's digest is compared before the codec sees it, the frame's own checksum after.
        """
        if digest(record) != row.stored_xxh3:
            raise CheckpointError(f"{label}: block at byte {block.begin} is damaged (digest differs); prepare it again")
        if not row.coded:
            out[:] = record
            return
        assert block.planes is not None  # the manifest's reader refuses coded rows for plain blocks
        where = f"{label}: block at byte {block.begin}"
        if row.window:
            self._decode_pairs(block, row, record, out, where)
            return
        coded = self._coded[: block.coded_plain]
        self._decompress(record[: row.coded], coded, where)
        self._merge.merge(block.planes, coded, record[row.coded :], out)

    def _decode_pairs(self, block: Block, row: Row, record: Bytes, out: Bytes, where: str) -> None:
        elements = block.coded_plain
        window = read_window(record[len(record) - row.window :], elements)
        if window is None:
            raise CheckpointError(f"{where} has no valid exponent window; prepare it again")
        pairs = self._coded[: pair_bytes(elements)]
        self._decompress(record[: row.coded], pairs, where)
        self._merge.merge_pairs(pairs, window, record[row.coded : row.coded + elements], out)

    def _decompress(self, frame: Bytes, out: Bytes, label: str) -> None:
        """Exactly `len(out)` bytes and the end of the frame; a bomb or a cut frame is an error, never a short plane."""
        try:
            with self._decompressor.stream_reader(frame) as reader:
                got = reader.readinto(out)
                more = reader.read(1)
        except self._zstd.ZstdError as error:
            raise CheckpointError(f"{label} does not decode ({error}); prepare it again") from error
        if got != len(out) or more:
            raise CheckpointError(f"{label} decodes to another length than {len(out)}; prepare it again")


def digest(*parts: Bytes) -> str:
    """xxh3-64 of the parts in a row, 16 hexadecimal digits."""
    try:
        import xxhash
    except ImportError as error:
        raise _missing("xxhash") from error
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part.data)
    return state.hexdigest()


def codec_versions() -> dict[str, str]:
    """Versions that a manifest records of its writer."""
    zstd = _zstandard()
    return {"zstandard": zstd.__version__, "zstd": ".".join(str(part) for part in zstd.ZSTD_VERSION)}


def _plain_record(plain: Bytes) -> Record:
    hashed = digest(plain)
    return Record(parts=(plain,), row=Row(coded=0, window=0, stored_xxh3=hashed, plain_xxh3=hashed))


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise _missing("zstandard") from error
    return zstandard


def _missing(package: str) -> UnsupportedError:
    return UnsupportedError(f'compressed sidecars need {package}: pip install "vflash[weight-io]"')
