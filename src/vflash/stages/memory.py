"""Peaks of one request: device allocated and reserved, and the process's resident set."""

from __future__ import annotations

import resource
import sys

import torch


def reset_peaks(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peaks(device: torch.device) -> dict[str, int | None]:
    """Bytes. Device figures are None on a CPU; `peak_rss` is the process's highest so far, not this request's alone."""
    unit = 1 if sys.platform == "darwin" else 1024
    allocated = reserved = None
    if device.type == "cuda":
        allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return {
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    }
