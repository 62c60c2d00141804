"""Memory peaks, stage by stage: device allocated, reserved and device-wide, and the process's resident set, apart."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import torch


class PeakMeter:
    """`begin` and `end` around a stage; without a device it measures nothing.

    Allocated and reserved are this process's highest on the device within the stage. Device-wide and resident set are
    read at the stage's end: what every process on the card holds, and what this one holds of the host.
    """

    def __init__(self, device: torch.device | None) -> None:
        self._device = device
        self._highest: dict[str, int] = {}

    def begin(self) -> None:
        if self._on_cuda():
            torch.cuda.reset_peak_memory_stats(self._device)

    def end(self) -> dict[str, int]:
        """Bytes of the stage that ends here; the device's figures are absent on a CPU."""
        if self._device is None:
            return {}
        found = {"rss_bytes": resident_bytes()}
        if self._on_cuda():
            free, total = torch.cuda.mem_get_info(self._device)
            found |= {
                "peak_allocated_bytes": torch.cuda.max_memory_allocated(self._device),
                "peak_reserved_bytes": torch.cuda.max_memory_reserved(self._device),
                "device_used_bytes": total - free,
            }
        for name, value in found.items():
            self._highest[name] = max(value, self._highest.get(name, 0))
        return found

    def highest(self) -> dict[str, int | None]:
        """The highest of all stages, and the process's highest resident set since it began; None is not measured."""
        unit = 1 if sys.platform == "darwin" else 1024
        device = dict.fromkeys(("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes"))
        return {**device, **self._highest, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}

    def _on_cuda(self) -> bool:
        return self._device is not None and self._device.type == "cuda"


def resident_bytes() -> int:
    """The process's resident set now; its highest so far where the system does not tell."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
