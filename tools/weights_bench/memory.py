"""Anonymous memory beyond the destination while a sidecar is read, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from time import sleep
from typing import Any

from vflash_adapters.weights.sidecar.source import SidecarWeights
from weights_bench.reading import destination, fill

BOUND_BYTES, BOUND_PER_WORKER = 32 * 2**20, 11_000_000


def memory_beyond_destination(path: Path, sidecar: Path) -> dict[str, Any]:
    """For 1, 2, 4 and 8 workers. Measured after the merge kernels were compiled, which happens once a process."""
    found = {}
    for workers in (1, 2, 4, 8):
        command = [sys.executable, "-m", "weights_bench.memory", str(path), str(sidecar), str(workers)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peak = json.loads(done.stdout)["beyond_destination_bytes"]
        bound = BOUND_BYTES + workers * BOUND_PER_WORKER
        found[str(workers)] = {"beyond_destination_bytes": peak, "bound_bytes": bound, "within": peak <= bound}
    return found


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


class Peak:
    """Samples this process every few milliseconds."""

    def __init__(self) -> None:
        self.bytes = anonymous_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.bytes = max(self.bytes, anonymous_bytes())
            sleep(0.002)


def main(path: Path, sidecar: Path, workers: int) -> None:
    source = SidecarWeights(path, sidecar, read_workers=workers)
    out = destination(source)
    before = anonymous_bytes()
    with Peak() as peak:
        fill(source, out)
    print(json.dumps({"beyond_destination_bytes": peak.bytes - before}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
