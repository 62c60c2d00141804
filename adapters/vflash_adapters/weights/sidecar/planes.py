"""How a dtype's bytes are taken apart into a plane worth coding and one that is noise.

Trained weights spend 2.6 of 8 exponent bits and all of sign and mantissa, so only exponents are coded. Rotating each
word left by one bit puts the sign beside the mantissa and the exponent alone into the top byte (BF16, F32) or nibble
(FP8). A rotation is a bijection: NaN payloads, -0 and infinities survive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import numpy as np
from attrs import frozen

from vflash_adapters.weights.byte_file import Bytes

if TYPE_CHECKING:
    from vflash_adapters.weights.sidecar.pairs import Window

ONE, FOUR, SEVEN = np.uint8(1), np.uint8(4), np.uint8(7)
HIGH_NIBBLE, LOW_NIBBLE = np.uint8(0xF0), np.uint8(0x0F)


class Planes(StrEnum):
    """Names of the transforms; they are part of the sidecar format."""

    BF16 = "bf16-rotated"
    F16 = "f16-high-byte"
    F32 = "f32-rotated"
    FP8 = "fp8-rotated-nibbles"


PLANES_BY_DTYPE: Mapping[str, Planes] = MappingProxyType(
    {
        "BF16": Planes.BF16,
        "F16": Planes.F16,
        "F32": Planes.F32,
        "F8_E4M3": Planes.FP8,
        "F8_E5M2": Planes.FP8,
        "F8_E4M3FNUZ": Planes.FP8,
        "F8_E5M2FNUZ": Planes.FP8,
    }
)
"""Stored dtype -> transform; every other dtype is stored as it is."""


def coded_bytes(planes: Planes, length: int) -> int:
    """Bytes of the coded plane of `length` plain bytes; the other plane holds the rest."""
    return {Planes.BF16: length // 2, Planes.F16: length // 2, Planes.F32: length // 4, Planes.FP8: length // 2}[planes]


@frozen(eq=False)
class PlanePair:
    """One block taken apart: `coded` goes to the codec, `raw` is stored as it is."""

    coded: Bytes
    raw: Bytes


class PlaneMerge(Protocol):
    """Puts planes together again. Implementations differ in speed alone."""

    @property
    def name(self) -> str: ...

    def merge(self, planes: Planes, coded: Bytes, raw: Bytes, out: Bytes) -> None:
        """Fill `out` (contiguous, any alignment) from its two planes."""
        ...

    def merge_pairs(self, pairs: Bytes, window: Window, raw: Bytes, out: Bytes) -> None:
        """The same for BF16 whose exponents are pairs of nibbles within `window`."""
        ...


def split(planes: Planes, plain: Bytes) -> PlanePair:
    """Take `plain` (whole elements) apart; both planes are fresh contiguous arrays."""
    return _SPLITS[planes](plain)


def _split_bf16(plain: Bytes) -> PlanePair:
    words = plain.view("<u2")
    rotated = ((words << 1) | (words >> 15)).view(np.uint8)
    return PlanePair(rotated[1::2].copy(), rotated[0::2].copy())


def _split_f16(plain: Bytes) -> PlanePair:
    return PlanePair(plain[1::2].copy(), plain[0::2].copy())


def _split_f32(plain: Bytes) -> PlanePair:
    words = plain.view("<u4")
    rotated = ((words << 1) | (words >> 31)).view(np.uint8)
    return PlanePair(rotated[3::4].copy(), np.concatenate([rotated[0::4], rotated[1::4], rotated[2::4]]))


def _split_fp8(plain: Bytes) -> PlanePair:
    """Nibbles of elements i and i + n/2 share a byte, so that Huffman sees pairs; an odd last byte stays whole."""
    half = len(plain) // 2
    rotated = (plain << ONE) | (plain >> SEVEN)
    left, right = rotated[:half], rotated[half : 2 * half]
    raw = np.concatenate([(left << FOUR) | (right & LOW_NIBBLE), plain[2 * half :]])
    return PlanePair((left & HIGH_NIBBLE) | (right >> FOUR), raw)


_SPLITS: Mapping[Planes, Callable[[Bytes], PlanePair]] = MappingProxyType(
    {Planes.BF16: _split_bf16, Planes.F16: _split_f16, Planes.F32: _split_f32, Planes.FP8: _split_fp8}
)
