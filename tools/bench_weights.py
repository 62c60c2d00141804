"""Weights: stored sizes, decoding, reading, sidecar against raw, memory; targets beside what was measured.

    python tools/bench_weights.py --trained model.safetensors --output bench.json
    python tools/bench_weights.py --output bench.json            (synthetic weights)

Claim ratios within one run only: medians of interleaved repeats. Reads are timed on a file of `--large-mib`, evicted
from the page cache for the cold ones; a host below a virtual machine may still hold it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
import zstandard

from vflash_adapters.weights.sidecar.prepare import prepare
from weights_bench.codec import decode_speed, stored_sizes
from weights_bench.material import prepare_material
from weights_bench.memory import memory_beyond_destination
from weights_bench.reading import reading_speed
from weights_bench.storage import sidecar_against_raw


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench-weights-") as name:
        report = _measure(options, Path(name))
    report["targets"] = targets(report)
    options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for target in report["targets"]:
        mark = "met   " if target["met"] else "MISSED"
        print(f"{mark} {target['target']}: {target['measured']} (wanted {target['wanted']})")


def targets(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Every target of the sidecar and the readers, with the figure of this run."""
    codec, reading, storage = report["decode"], report["reading"], report["storage"]["by_speed"]
    at_most = [
        ("trained BF16, stored / raw", report["sizes"]["bf16"]["dtype_ratio"], 0.67),
        ("row-scaled FP8, stored / raw", report["sizes"]["fp8"]["dtype_ratio"], 0.84),
    ]
    at_least = [
        ("decode + merge, one core, over plain zstd 3", codec["numba_over_plain_zstd_3"], 2.3),
        ("decode + merge, one core, over memcpy", codec["numba_over_memcpy"], 0.25),
        ("reused buffers over load_file + clone, warm", reading["warm"]["best_over_load_and_clone"], 4.0),
        ("reused buffers over load_file + clone, cold", reading["cold"]["best_over_load_and_clone"], 3.0),
        ("sidecar over raw at 0.5 GB/s", storage["0.5 GB/s"]["sidecar_over_raw"], 1.2),
    ]
    found = [{"target": n, "measured": v, "wanted": f"<= {w}", "met": v <= w} for n, v, w in at_most]
    found += [{"target": n, "measured": v, "wanted": f">= {w}", "met": v >= w} for n, v, w in at_least]
    for workers, memory in report["memory"].items():
        found.append(
            {
                "target": f"anonymous bytes beyond the destination, {workers} workers",
                "measured": memory["beyond_destination_bytes"],
                "wanted": f"<= {memory['bound_bytes']}",
                "met": memory["within"],
            }
        )
    return found


def _measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    material = prepare_material(options.trained, folder, options.large_mib << 20)
    sizes = {
        "bf16": stored_sizes(material.bf16, folder / "sizes", "BF16"),
        "fp8": stored_sizes(material.fp8, folder / "sizes", "F8_E4M3"),
    }
    decode = decode_speed(material.bf16, options.repeats)
    reading = reading_speed(material.large, options.repeats)
    started, used = perf_counter(), process_time()
    done = prepare(material.large, folder / "sidecar")
    prepared = {
        "gb_s": round(done.source_bytes / (perf_counter() - started) / 1e9, 3),
        "gb_s_per_processor": round(done.source_bytes / (process_time() - used) / 1e9, 3),
    }
    return {
        "environment": _environment(options),
        "material": material.kind,
        "sizes": sizes,
        "prepare": prepared,
        "decode": decode,
        "reading": reading,
        "storage": sidecar_against_raw(material.large, folder / "sidecar", options.workers, options.repeats),
        "memory": memory_beyond_destination(material.large, folder / "sidecar"),
    }


def _environment(options: argparse.Namespace) -> dict[str, Any]:
    cpu = next((line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")), "unknown")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "zstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
        "repeats": options.repeats,
        "large_mib": options.large_mib,
    }


def _cpu_lines() -> list[str]:
    return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", type=Path, help="a safetensors file of trained weights; synthetic without it")
    parser.add_argument("--output", type=Path, required=True, help="JSON to write")
    parser.add_argument("--folder", type=Path, help="where the large files go: the disk that is measured")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="readers of the storage comparison")
    parser.add_argument("--large-mib", type=int, default=1024)
    return parser.parse_args()


if __name__ == "__main__":
    main()
