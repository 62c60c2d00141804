"""Float32 tensors whose values all fit a two-byte format, stored in that format; the way back is bit-equal."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vflash_adapters.weights.byte_file import Bytes

WIDE = "F32"
NARROW = ("BF16", "F16")
"""In the order they are tried: BF16 has more exponent and less noise, so it packs smaller."""


def narrowed(dtype: str, plain: Bytes) -> tuple[str, Bytes]:
    """The dtype that `plain` (whole elements of `dtype`, safetensors' names) is stored as, and its bytes there."""
    if dtype != WIDE:
        return dtype, plain
    words = np.ascontiguousarray(plain).view("<u4")
    for name in NARROW:
        short = (words >> 16).astype("<u2").view(np.uint8) if name == "BF16" else _to_half(words)
        if np.array_equal(widened(name, WIDE, short).view("<u4"), words):
            return name, short
    return dtype, plain


def widened(stored: str, dtype: str, plain: Bytes) -> Bytes:
    """The bytes as `dtype` again; only `narrowed`'s pairs are asked for."""
    if stored == dtype:
        return plain
    assert (stored in NARROW, dtype) == (True, WIDE), (stored, dtype)
    short = np.ascontiguousarray(plain)
    if stored == "BF16":
        return (short.view("<u2").astype("<u4") << 16).view(np.uint8)
    return short.view("<f2").astype("<f4").view(np.uint8)


def _to_half(words: npt.NDArray[np.uint32]) -> Bytes:
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is noticed by comparing
        return words.view("<f4").astype("<f2").view(np.uint8)
