"""Planes back to elements in numpy, a cache-sized piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from vflash_adapters.weights.byte_file import Bytes
from vflash_adapters.weights.sidecar.pairs import Window, unpack_pairs
from vflash_adapters.weights.sidecar.planes import FOUR, HIGH_NIBBLE, LOW_NIBBLE, ONE, SEVEN, Planes

_PIECE = 32 * 1024  # elements: a piece and its temporaries stay in the second-level cache


class NumpyMerge:
    """Vectorised, and needs nothing but numpy."""

    name = "numpy"

    def merge(self, planes: Planes, coded: Bytes, raw: Bytes, out: Bytes) -> None:
        _MERGES[planes](coded, raw, out)

    def merge_pairs(self, pairs: Bytes, window: Window, raw: Bytes, out: Bytes) -> None:
        _merge_bf16(unpack_pairs(pairs, window, len(raw)), raw, out)


def _merge_bf16(coded: Bytes, raw: Bytes, out: Bytes) -> None:
    for start in range(0, len(coded), _PIECE):
        stop = min(start + _PIECE, len(coded))
        piece = out[2 * start : 2 * stop]
        piece[0::2], piece[1::2] = raw[start:stop], coded[start:stop]
        words = piece.view("<u2")
        high = words << 15
        words >>= 1
        words |= high


def _merge_f16(coded: Bytes, raw: Bytes, out: Bytes) -> None:
    out[0::2], out[1::2] = raw, coded


def _merge_f32(coded: Bytes, raw: Bytes, out: Bytes) -> None:
    count = len(coded)
    for start in range(0, count, _PIECE):
        stop = min(start + _PIECE, count)
        piece = out[4 * start : 4 * stop]
        for byte in range(3):
            piece[byte::4] = raw[byte * count + start : byte * count + stop]
        piece[3::4] = coded[start:stop]
        words = piece.view("<u4")
        high = words << 31
        words >>= 1
        words |= high


def _merge_fp8(coded: Bytes, raw: Bytes, out: Bytes) -> None:
    half = len(coded)
    for start in range(0, half, _PIECE):
        stop = min(start + _PIECE, half)
        high, low = coded[start:stop], raw[start:stop]
        out[start:stop] = _rotate_right((high & HIGH_NIBBLE) | (low >> FOUR))
        out[half + start : half + stop] = _rotate_right((high << FOUR) | (low & LOW_NIBBLE))
    out[2 * half :] = raw[half:]


def _rotate_right(rotated: Bytes) -> Bytes:
    return (rotated >> ONE) | (rotated << SEVEN)


_MERGES: Mapping[Planes, Callable[[Bytes, Bytes, Bytes], None]] = MappingProxyType(
    {Planes.BF16: _merge_bf16, Planes.F16: _merge_f16, Planes.F32: _merge_f32, Planes.FP8: _merge_fp8}
)
