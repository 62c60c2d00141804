"""Sidecar against raw behind a store of a given speed: where compression pays, and where it cannot."""

from __future__ import annotations

import threading
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

import torch

from vflash_adapters.weights.buffered_source import BufferedWeights
from vflash_adapters.weights.byte_file import ByteFile, Bytes, CachedFile, ReadMode
from vflash_adapters.weights.sidecar.source import SidecarWeights
from vflash_ports.weights import WeightSource
from weights_bench.reading import destination, fill
from weights_bench.timing import interleaved, rates, ratio, warm

SPEEDS_GB_S = (0.5, 1.0, 2.0, 4.0)


class Store:
    """One shared store: all readers together get `bytes_per_second`, None for as fast as the cache is."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    def open(self, descriptor: int, path: Path) -> ByteFile:
        return _StoredFile(CachedFile(descriptor, path), self)

    def wait_for(self, byte_count: int) -> None:
        if self._rate is None:
            return
        with self._lock:
            self._free_at = max(self._free_at, perf_counter()) + byte_count / self._rate
            until = self._free_at
        sleep(max(0.0, until - perf_counter()))


class _StoredFile:
    mode = ReadMode.CACHED

    def __init__(self, file: CachedFile, store: Store) -> None:
        self._file, self._store = file, store

    def read_into(self, offset: int, out: Bytes, scratch: Bytes) -> None:
        self._store.wait_for(len(out))
        self._file.read_into(offset, out, scratch)


def sidecar_against_raw(path: Path, sidecar: Path, workers: int, repeats: int) -> dict[str, Any]:
    """Both from the page cache, slowed to each speed; then the speed of decoding itself, which is the break-even."""
    warm(path)
    out = destination(BufferedWeights(path))
    size = path.stat().st_size
    report: dict[str, dict[str, Any]] = {}
    for speed in (*SPEEDS_GB_S, None):
        store = Store(speed * 1e9 if speed else None)
        raw = BufferedWeights(path, read_workers=workers, open_file=store.open)
        coded = SidecarWeights(path, sidecar, read_workers=workers, open_file=store.open)
        cases = {"raw": lambda raw=raw: fill(raw, out), "sidecar": lambda coded=coded: fill(coded, out)}
        seconds = interleaved(cases, repeats)
        report["unlimited" if speed is None else f"{speed:g} GB/s"] = {
            "rates": rates(seconds, size),
            "sidecar_over_raw": ratio(seconds, "sidecar", "raw"),
        }
    decode = report["unlimited"]["rates"]["sidecar"]["median_gb_s"]
    return {
        "workers": workers,
        "by_speed": report,
        "break_even_gb_s": decode,
        "break_even_gb_s_per_processor": _per_processor(SidecarWeights(path, sidecar, read_workers=1), out, repeats),
    }


def _per_processor(source: WeightSource, out: dict[str, torch.Tensor], repeats: int) -> float:
    """End to end from the page cache, by processor seconds: what one core that is free gives."""
    seconds = interleaved({"sidecar": lambda: fill(source, out)}, repeats, clock=process_time)
    return rates(seconds, sum(tensor.nbytes for tensor in out.values()))["sidecar"]["median_gb_s"]
