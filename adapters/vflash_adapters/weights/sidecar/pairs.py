"""Exponents of two elements in one byte: half as many symbols to decode for the same size.

99.98 % of a block's exponents lie within 16 neighbours. Each is coded as its distance from the lowest, four bits; bytes
of two such nibbles go to the codec, whose Huffman tables then see pairs. The few exponents outside are listed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from attrs import frozen

from vflash_adapters.weights.byte_file import Bytes
from vflash_adapters.weights.sidecar.planes import FOUR, LOW_NIBBLE

WIDTH = 16
ENTRY_BYTES = 5  # a listed exponent: position, four bytes little-endian, and the exponent itself


@frozen(kw_only=True, eq=False)
class Window:
    """`base`: the exponent that nibble 0 stands for. `positions` (rising) and `exponents` of what lies outside."""

    base: int
    positions: npt.NDArray[np.uint32]
    exponents: Bytes

    @property
    def byte_count(self) -> int:
        return 1 + ENTRY_BYTES * len(self.positions)

    def to_bytes(self) -> Bytes:
        packed = self.positions.astype("<u4").view(np.uint8)
        return np.concatenate([np.array([self.base], dtype=np.uint8), packed, self.exponents])


def read_window(content: Bytes, elements: int) -> Window | None:
    """The window in `content`, or None if that is not one for a block of `elements`."""
    count, odd = divmod(len(content) - 1, ENTRY_BYTES)
    if len(content) < 1 or odd:
        return None
    positions = np.frombuffer(content[1 : 1 + 4 * count].tobytes(), dtype="<u4").astype(np.uint32)
    if count and (positions[-1] >= elements or bool((positions[1:] <= positions[:-1]).any())):
        return None
    return Window(base=int(content[0]), positions=positions, exponents=content[1 + 4 * count :].copy())


def pair_bytes(elements: int) -> int:
    """Bytes of the plane of pairs; with an odd count the last low nibble stands for nothing."""
    return (elements + 1) // 2


def pack_pairs(exponents: Bytes) -> tuple[Bytes, Window]:
    """Byte k holds element k in its high and element k + half in its low nibble."""
    base, common = _best_window(exponents)
    distance = exponents.astype(np.int16) - base
    outside = (distance < 0) | (distance >= WIDTH)
    nibbles = np.where(outside, common, distance).astype(np.uint8)
    half = pair_bytes(len(exponents))
    pairs = nibbles[:half] << FOUR
    pairs[: len(exponents) - half] |= nibbles[half:]
    positions = np.flatnonzero(outside).astype(np.uint32)
    return pairs, Window(base=base, positions=positions, exponents=exponents[outside])


def unpack_pairs(pairs: Bytes, window: Window, elements: int) -> Bytes:
    """The exponents again."""
    half, base = len(pairs), np.uint8(window.base)
    exponents = np.empty(elements, dtype=np.uint8)
    exponents[:half] = (pairs >> FOUR) + base
    exponents[half:] = (pairs[: elements - half] & LOW_NIBBLE) + base
    exponents[window.positions] = window.exponents
    return exponents


def _best_window(exponents: Bytes) -> tuple[int, int]:
    """The base whose 16 neighbours cover most, and the commonest distance in it, which listed elements borrow."""
    counts = np.bincount(exponents, minlength=256)
    cover = np.convolve(counts, np.ones(WIDTH, dtype=np.int64), mode="valid")
    base = int(cover.argmax())
    return base, int(counts[base : base + WIDTH].argmax())
