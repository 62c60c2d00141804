"""Planes back to elements in compiled code: one pass, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vflash_adapters.weights.byte_file import Bytes
from vflash_adapters.weights.sidecar.pairs import Window
from vflash_adapters.weights.sidecar.planes import Planes
from vflash_ports.errors import UnsupportedError

Positions = npt.NDArray[np.uint32]
Kernel = Callable[[Bytes, Bytes, Bytes], None]


class NumbaMerge:
    """Compiled once per process, when it is made (about a second)."""

    name = "numba"

    def __init__(self) -> None:
        self._kernels, self._pairs = _compile_kernels()

    def merge(self, planes: Planes, coded: Bytes, raw: Bytes, out: Bytes) -> None:
        self._kernels[planes](coded, raw, out)

    def merge_pairs(self, pairs: Bytes, window: Window, raw: Bytes, out: Bytes) -> None:
        self._pairs(pairs, np.uint8(window.base), raw, window.positions, window.exponents, out)


@cache
def _compile_kernels() -> tuple[Mapping[Planes, Kernel], Callable[..., None]]:
    try:
        import numba
    except ImportError as error:
        raise UnsupportedError(
            'merging planes with numba needs it: pip install "vflash[weight-io]", or choose the numpy merge'
        ) from error
    compile_kernel: Any = numba.njit("void(uint8[::1], uint8[::1], uint8[::1])", nogil=True)
    compile_pairs: Any = numba.njit(
        "void(uint8[::1], uint8, uint8[::1], uint32[::1], uint8[::1], uint8[::1])", nogil=True
    )
    kernels = {
        Planes.BF16: compile_kernel(_merge_bf16),
        Planes.F16: compile_kernel(_merge_f16),
        Planes.F32: compile_kernel(_merge_f32),
        Planes.FP8: compile_kernel(_merge_fp8),
    }
    return kernels, compile_pairs(_merge_pairs)


def _merge_bf16(coded: Bytes, raw: Bytes, out: Bytes) -> None:
    for i in range(coded.size):
        out[2 * i] = np.uint8((coded[i] << 7) | (raw[i] >> 1))
        out[2 * i + 1] = np.uint8((raw[i] << 7) | (coded[i] >> 1))


def _merge_pairs(pairs: Bytes, base: int, raw: Bytes, positions: Positions, exponents: Bytes, out: Bytes) -> None:
    half = pairs.size
    # halves as arrays of their own: an index that is a sum keeps the compiler from vectorising (13 times slower)
    raw_high, out_high = raw[half:], out[2 * half :]
    for i in range(half):
        exponent = np.uint8((pairs[i] >> 4) + base)
        out[2 * i] = np.uint8((exponent << 7) | (raw[i] >> 1))
        out[2 * i + 1] = np.uint8((raw[i] << 7) | (exponent >> 1))
    for i in range(raw_high.size):
        exponent = np.uint8((pairs[i] & 0x0F) + base)
        out_high[2 * i] = np.uint8((exponent << 7) | (raw_high[i] >> 1))
        out_high[2 * i + 1] = np.uint8((raw_high[i] << 7) | (exponent >> 1))
    for k in range(positions.size):
        at = np.int64(positions[k])
        out[2 * at] = np.uint8((exponents[k] << 7) | (raw[at] >> 1))
        out[2 * at + 1] = np.uint8((raw[at] << 7) | (exponents[k] >> 1))


def _merge_f16(coded: Bytes, raw: Bytes, out: Bytes) -> None:
    for i in range(coded.size):
        out[2 * i] = raw[i]
        out[2 * i + 1] = coded[i]


def _merge_f32(coded: Bytes, raw: Bytes, out: Bytes) -> None:
    n = coded.size
    for i in range(n):
        low, middle, high, top = raw[i], raw[n + i], raw[2 * n + i], coded[i]
        out[4 * i] = np.uint8((low >> 1) | (middle << 7))
        out[4 * i + 1] = np.uint8((middle >> 1) | (high << 7))
        out[4 * i + 2] = np.uint8((high >> 1) | (top << 7))
        out[4 * i + 3] = np.uint8((top >> 1) | (low << 7))


def _merge_fp8(coded: Bytes, raw: Bytes, out: Bytes) -> None:
    half = coded.size
    out_high = out[half:]
    for i in range(half):
        left = np.uint8((coded[i] & 0xF0) | (raw[i] >> 4))
        out[i] = np.uint8((left >> 1) | (left << 7))
    for i in range(half):
        right = np.uint8((coded[i] << 4) | (raw[i] & 0x0F))
        out_high[i] = np.uint8((right >> 1) | (right << 7))
    if out.size > 2 * half:
        out[2 * half] = raw[half]
