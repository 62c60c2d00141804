"""Milliseconds and bytes of one step on the current CUDA device."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def timed(step: Callable[[], object], repeats: int, *, inner: int = 1) -> float:
    """Median milliseconds between device events, after three warm-up calls; a sample is `inner` calls back to back."""
    for _ in range(3):
        step()
    samples: list[float] = []
    for _ in range(repeats):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(inner):
            step()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / inner)
    return statistics.median(samples)


def peak_bytes(step: Callable[[], object]) -> int:
    """Device bytes allocated at the peak of one call, above what was there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
