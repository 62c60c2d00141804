"""Writes a clip in a child process and kills it at random moments; prints one JSON line of what was found after."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from vflash_adapters.media.ffmpeg_file import FfmpegFileSink
from vflash_adapters.media.ffmpeg_pipe import FfmpegPipeSink
from vflash_adapters.media.probe import probe_mp4
from vflash_adapters.media.scratch import sweep_abandoned
from vflash_ports.media import Clip

FRAMES = 72


def clip() -> Clip:
    frames = torch.full((FRAMES, 3, 96, 96), 0.4)
    return Clip(
        width=96,
        height=96,
        frame_count=FRAMES,
        fps=24,
        frames=slowly(frames),
        waveform=torch.zeros((2, FRAMES * 32000 // 24)),
        sample_rate_hz=32000,
    )


def slowly(frames: torch.Tensor) -> Iterator[torch.Tensor]:
    for part in frames.split(9):
        time.sleep(0.01)
        yield part


def orphans(folder: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or []) and process.pid != os.getpid()
    ]


def attempt(folder: Path, index: int, delay_s: float) -> str:
    """`whole`, `none`, or what is wrong."""
    output = folder / f"{index}.mp4"
    sink = (FfmpegFileSink, FfmpegPipeSink)[index % 2]()
    child = os.fork()
    if child == 0:
        try:
            sink.write(clip(), output)
        finally:
            os._exit(0)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 5
    while orphans(folder / "") and time.monotonic() < deadline:
        time.sleep(0.005)
    if found := orphans(folder / ""):
        return f"orphans {found}"
    if not output.exists():
        return "none"
    probe = probe_mp4(output)
    return "whole" if (probe.frames, probe.audio_samples) == (FRAMES, 96000) else f"half: {probe}"


def main(folder: Path, kills: int) -> None:
    draw = random.Random(20261)
    FfmpegFileSink().check(folder / "0.mp4")  # find FFmpeg once, so that every kill falls into the writing
    results = [attempt(folder, index, draw.uniform(0.0, 0.45)) for index in range(kills)]
    sweep_abandoned(folder)
    left = sorted(path.name for path in folder.iterdir() if path.suffix != ".mp4")
    tally = {result: results.count(result) for result in sorted(set(results))}
    print(json.dumps({"results": tally, "left": left}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
