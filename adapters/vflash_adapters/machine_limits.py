"""How many bytes this process may hold on a device and in the host, by what the system says right now."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from attrs import frozen

from vflash_ports.machine import MachineLimits

GIB = 2**30


@frozen(kw_only=True)
class MachineMemory:
    """A `MachineReader`. Numbers given here stand in for the machine's own: to plan for another one, or to leave
    room. `proc` and `cgroup` are where Linux tells."""

    device_gib: float | None = None
    host_gib: float | None = None
    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")

    def __call__(self, device: torch.device) -> MachineLimits:
        return MachineLimits(
            device=str(device),
            device_bytes=self._device(device),
            host_bytes=self._host() if self.host_gib is None else int(self.host_gib * GIB),
        )

    def _device(self, device: torch.device) -> int | None:
        """Free memory, and what this process's allocator holds already."""
        if device.type == "cpu":
            return None
        if self.device_gib is not None:
            return int(self.device_gib * GIB)
        free, _total = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device)

    def _host(self) -> int:
        """What is available beside what this process holds, within its control group's limit."""
        own = int((self.proc / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for line in (self.proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024 + own
                break
        else:
            available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min(available, self._cgroup_limit())

    def _cgroup_limit(self) -> int:
        try:
            limit = (self.cgroup / "memory.max").read_text().strip()
        except OSError:
            return 1 << 62
        return 1 << 62 if limit == "max" else int(limit)
