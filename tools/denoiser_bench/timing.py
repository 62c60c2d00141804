"""Medians of device time, and peaks of device memory; on a CPU the same calls work with the wall clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

import torch

GIB = float(2**30)
LAUNCH_HEAD_START_CYCLES = 2_000_000  # about a millisecond


def milliseconds(run: Callable[[], object], device: torch.device, *, repeats: int = 7, batch: int = 1) -> float:
    """Median over `repeats` of one call's device time; `batch` calls are queued back to back for each sample."""
    return interleaved({"": run}, device, rounds=repeats, batch=batch)[""]


def interleaved(
    runs: Mapping[str, Callable[[], object]], device: torch.device, *, rounds: int, batch: int = 1
) -> dict[str, float]:
    """Medians of several calls that take turns, so that a chip that warms up or throttles does so for all of them."""
    for run in runs.values():
        run()
        run()
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            samples[name].append(_sample(run, device, batch))
    return {name: median(times) for name, times in samples.items()}


def sustained(
    runs: Mapping[str, Callable[[], object]], device: torch.device, *, seconds: float, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of each call kept up for `seconds`, of which the second half counts; one number a round.

    A chip at its power limit slows down within a fraction of a second, and speeds up again while something lighter
    runs: single calls that take turns borrow from each other, work that is kept up does not.
    """
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            half = max(1, int(seconds * 500 / max(_sample(run, device, 1), 1e-3)))
            _sample(run, device, half)
            times[name].append(_sample(run, device, half))
    return times


def _sample(run: Callable[[], object], device: torch.device, batch: int) -> float:
    if device.type != "cuda":
        started = perf_counter()
        for _ in range(batch):
            run()
        return (perf_counter() - started) * 1000 / batch
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    # the host queues the work meanwhile: device time, not launch latency
    torch.cuda._sleep(LAUNCH_HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(batch):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / batch


def allocated_bytes(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def peak_gib(run: Callable[[], object], device: torch.device, base_bytes: int) -> float:
    """Highest allocation during one call above `base_bytes`, in GiB."""
    if device.type != "cuda":
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - base_bytes) / GIB


def relative_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """||actual - exact|| / ||exact|| in float64."""
    return float((actual.double() - exact.double()).norm() / exact.double().norm())
