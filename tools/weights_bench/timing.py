"""Interleaved repeats in one process: ratios within a run hold where absolute figures do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter


def interleaved(
    cases: Mapping[str, Callable[[], None]],
    repeats: int,
    before: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every case, all cases once a round; `before` runs untimed ahead of each."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()  # warms caches and compiled code; not counted
    for _ in range(repeats):
        for name, case in cases.items():
            before()
            started = clock()
            case()
            seconds[name].append(clock() - started)
    return seconds


def rates(seconds: Mapping[str, list[float]], byte_count: int) -> dict[str, dict[str, float]]:
    """GB/s: median, and the range of the repeats."""
    found = {}
    for name, values in seconds.items():
        speeds = sorted(byte_count / value / 1e9 for value in values)
        found[name] = {
            "median_gb_s": round(median(speeds), 3),
            "min_gb_s": round(speeds[0], 3),
            "max_gb_s": round(speeds[-1], 3),
        }
    return found


def ratio(seconds: Mapping[str, list[float]], faster: str, slower: str) -> float:
    """How many times as fast, as the median over rounds."""
    return round(median(s / f for s, f in zip(seconds[slower], seconds[faster], strict=True)), 3)


def evict(path: Path) -> None:
    """Out of this machine's page cache; a host below may still hold it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def warm(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
