"""Milliseconds and bytes of one step on the current CUDA device."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def timed(
    step: Callable[[], object], repeats: int, *, inner: int = 1, before: Callable[[], object] | None = None
) -> float:
    """Median milliseconds between device events, after three warm-up calls; a sample is `inner` calls back to back.

    `before` runs ahead of every sample, outside the measured time: it restores what a call overwrites.
    """
    samples: list[float] = []
    for sample in range(-3, repeats):
        if before is not None:
            before()
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(inner):
            step()
        end.record()
        end.synchronize()
        if sample >= 0:
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
