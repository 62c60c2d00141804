"""The MP4 sinks side by side: seconds, processor seconds, anonymous memory and bytes written, as JSON.

    python tools/bench_media.py --output bench.json

Default: 120 frames of 2048x2048, `file` against `pipe`, x264 threads auto, 8 and 16, three interleaved rounds; each
run in a process of its own, medians of the rounds. Frames are synthetic and made in chunks of eight, as a decoder
would hand them over, so a whole decoded clip (6 GB at this size) is never in memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from vflash_adapters.media.encoding import Encoding
from vflash_adapters.media.ffmpeg_binary import find_ffmpeg
from vflash_adapters.media.ffmpeg_file import FfmpegFileSink
from vflash_adapters.media.ffmpeg_pipe import FfmpegPipeSink
from vflash_ports.media import Clip, MediaSink

SINKS: dict[str, Callable[..., MediaSink]] = {"file": FfmpegFileSink, "pipe": FfmpegPipeSink}
CHUNK_FRAMES = 8
SAMPLE_S = 0.02
MEASURES = ("seconds", "cpu_seconds", "peak_anonymous_bytes", "written_bytes", "rgb_temporary_bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="where to write the JSON")
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--frames", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", nargs="+", default=["auto", "8", "16"], help="auto or 1 to 256")
    parser.add_argument("--folder", type=Path, help="where clips are written; default: the system's temporary folder")
    parser.add_argument("--one", nargs=2, metavar=("SINK", "THREADS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one, size=args.size, frames=args.frames, folder=args.folder)))
        return
    result: dict[str, Any] = {}
    for result in rounds(args):
        if args.output:
            args.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({"medians": result["medians"], "pipe_over_file": result["pipe_over_file"]}, indent=2))


def rounds(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All cases once, then all again, to and fro: a slow minute of the machine falls on every case alike."""
    cases = [(sink, threads) for threads in args.threads for sink in SINKS]
    runs: dict[str, list[dict[str, Any]]] = {f"{sink} {threads}": [] for sink, threads in cases}
    described = environment()
    for round_number in range(args.rounds):
        for sink, threads in cases if round_number % 2 == 0 else reversed(cases):
            runs[f"{sink} {threads}"].append(in_own_process(args, sink, threads))
            print(f"{sink} {threads}: {runs[f'{sink} {threads}'][-1]['seconds']:.1f} s", file=sys.stderr)
        yield {"environment": described, **summary(args, runs)}


def summary(args: argparse.Namespace, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    medians = {
        name: {measure: statistics.median(run[measure] for run in measured) for measure in MEASURES}
        for name, measured in runs.items()
    }
    ratios = {
        threads: {name: medians[f"pipe {threads}"][name] / medians[f"file {threads}"][name] for name in MEASURES[:4]}
        for threads in args.threads
    }
    digests = {
        threads: {run["sha256"] for sink in SINKS for run in runs[f"{sink} {threads}"]} for threads in args.threads
    }
    return {
        "clip": {"width": args.size, "height": args.size, "frames": args.frames, "preset": "medium", "crf": 18},
        "medians": medians,
        "pipe_over_file": ratios,
        "equal_files": {threads: len(found) == 1 for threads, found in digests.items()},
        "runs": runs,
    }


def in_own_process(args: argparse.Namespace, sink: str, threads: str) -> dict[str, Any]:
    folder = ["--folder", str(args.folder)] if args.folder else []
    command = [sys.executable, __file__, "--one", sink, threads, "--size", str(args.size), "--frames", str(args.frames)]
    done = subprocess.run([*command, *folder], capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def measure(sink: str, threads: str, *, size: int, frames: int, folder: Path | None) -> dict[str, Any]:
    encoding = Encoding(threads=None if threads == "auto" else int(threads), timeout_s=3600)
    place = Path(tempfile.mkdtemp(dir=folder))
    clip = synthetic_clip(size, frames)
    watch = TreeWatch()
    try:
        before = sum(os.times()[:4])
        with watch:
            started = time.monotonic()
            delivery = SINKS[sink](encoding=encoding).write(clip, place / "clip.mp4")
            seconds = time.monotonic() - started
        return {
            "seconds": seconds,
            "cpu_seconds": sum(os.times()[:4]) - before,
            "peak_anonymous_bytes": watch.peak_anonymous_bytes,
            # to storage: RGB, PCM and the MP4; sampled, so a child's last 20 ms may be missing
            "written_bytes": watch.written_bytes,
            "rgb_temporary_bytes": delivery.details["rgb_temporary_bytes"],
            "size_bytes": delivery.size_bytes,
            "sha256": sha256((place / "clip.mp4").read_bytes()).hexdigest(),
        }
    finally:
        shutil.rmtree(place)


def synthetic_clip(size: int, frames: int) -> Clip:
    """A textured picture that drifts under a moving light: detail, motion and fine grain, cheap to make."""
    seeded = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.arange(size) / size, torch.arange(size) / size, indexing="ij")
    base = torch.stack(
        [0.5 + 0.3 * torch.sin(40 * x + 9 * y), 0.5 + 0.3 * torch.cos(31 * y - 5 * x), 0.4 + 0.3 * x * y]
    )
    base += 0.02 * torch.randn(base.shape, generator=seeded)

    def chunks() -> Iterator[torch.Tensor]:
        for start in range(0, frames, CHUNK_FRAMES):
            indices = range(start, min(start + CHUNK_FRAMES, frames))
            yield torch.stack([base.roll(3 * index, dims=2) * (0.9 + 0.1 * math.sin(index / 9)) for index in indices])

    waveform = torch.sin(torch.arange(frames * 32000 // 24) * 0.07).expand(2, -1) * 0.3
    return Clip(
        width=size,
        height=size,
        frame_count=frames,
        fps=24,
        frames=chunks(),
        waveform=waveform,
        sample_rate_hz=32000,
    )


class TreeWatch(threading.Thread):
    """Samples this process and its children: the highest sum of anonymous memory, and all bytes written."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_anonymous_bytes = 0
        self._written: dict[int, int] = {}
        self._written_before = 0
        self._done = threading.Event()

    @property
    def written_bytes(self) -> int:
        return sum(self._written.values()) - self._written_before

    def __enter__(self) -> TreeWatch:
        self._sample()
        self._written_before = sum(self._written.values())
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()
        self._sample()

    def run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        anonymous = 0
        for process in tree(os.getpid()):
            try:
                anonymous += field(process, "status", "RssAnon") * 1024
                self._written[process] = field(process, "io", "write_bytes")
            except (OSError, LookupError):
                continue  # it ended between listing and reading
        self.peak_anonymous_bytes = max(self.peak_anonymous_bytes, anonymous)


def tree(root: int) -> list[int]:
    found = [root]
    for process in found:
        try:
            tasks = list(Path(f"/proc/{process}/task").iterdir())
            found += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def field(process: int, table: str, name: str) -> int:
    for line in Path(f"/proc/{process}/{table}").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(name)


def environment() -> dict[str, Any]:
    version = subprocess.run([find_ffmpeg(), "-version"], capture_output=True, text=True, check=True).stdout
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpus": os.cpu_count(),
        "cpu": models[0].partition(":")[2].strip() if models else platform.processor(),
        "load_before": os.getloadavg(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ffmpeg": version.splitlines()[0],
    }


if __name__ == "__main__":
    main()
