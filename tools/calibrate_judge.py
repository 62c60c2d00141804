"""How often the judge is right on clips whose truth is known, encoded as the product encodes them.

PYTHONPATH=tools python tools/calibrate_judge.py --clips 200 --output docs/benchmarks/2026-11-judge.json
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from attrs import field, frozen

from tiny_h3.scenes import Scenes, describe, draw_scenes
from tiny_h3.world import render_audio, render_video
from vflash_adapters.judge.reading import PlayedClip, read_clip
from vflash_adapters.judge.verdict import Verdict, judge, measure
from vflash_adapters.media.ffmpeg_pipe import FfmpegPipeSink
from vflash_ports.media import Clip

DELIVERED_FRAMES = 120
DELIVERED_SAMPLES = 160_000


@frozen(kw_only=True)
class Canvas:
    height: int
    width: int


CANVASES = (Canvas(height=64, width=64), Canvas(height=96, width=128), Canvas(height=128, width=96))


@frozen(kw_only=True)
class Calibration:
    """Right answers and questions, by attribute."""

    right: Counter[str] = field(factory=Counter)
    asked: Counter[str] = field(factory=Counter)

    def add(self, verdict: Verdict) -> None:
        for attribute in verdict.attributes:
            self.asked[attribute.name] += 1
            self.right[attribute.name] += attribute.right

    @property
    def accuracy(self) -> float:
        return sum(self.right.values()) / sum(self.asked.values())

    def table(self) -> dict[str, dict[str, float]]:
        names = [*sorted(self.asked), "all"]
        right = {**self.right, "all": sum(self.right.values())}
        asked = {**self.asked, "all": sum(self.asked.values())}
        return {name: _row(right[name], asked[name]) for name in names}


def calibrate(count: int, seed: int, canvas: Canvas, folder: Path) -> Calibration:
    """Draw, render, encode, read back and judge `count` clips against their full descriptions and true keyframes."""
    found = Calibration()
    scenes = draw_scenes(count, seed)
    for index, description in enumerate(describe(scenes)):
        clip, truth = encoded(scenes[index : index + 1], canvas, folder / f"{index}.mp4")
        first, last = truth[0].numpy(), truth[-1].numpy()
        found.add(judge(measure(clip), description, first_frame=first, last_frame=last))
    return found


def encoded(scene: Scenes, canvas: Canvas, path: Path) -> tuple[PlayedClip, torch.Tensor]:
    """One scene through the pipe sink to an MP4 and back; and its true frames, uint8 [F, H, W, 3]."""
    frames = render_video(scene, canvas.height, canvas.width, frames=DELIVERED_FRAMES)[0].transpose(0, 1).contiguous()
    sound = render_audio(scene, aspect=(canvas.height, canvas.width))[0, :, :DELIVERED_SAMPLES].contiguous()
    clip = Clip(
        width=canvas.width,
        height=canvas.height,
        frame_count=DELIVERED_FRAMES,
        fps=24,
        frames=iter(torch.split(frames, 40)),
        waveform=sound,
        sample_rate_hz=32_000,
    )
    FfmpegPipeSink().write(clip, path)
    return read_clip(path), (frames * 255).round().to(torch.uint8).permute(0, 2, 3, 1)


def wilson(right: int, asked: int) -> tuple[float, float]:
    """95 % confidence interval of a share (Wilson score)."""
    z = 1.959964
    share, scale = right / asked, 1 + z * z / asked
    middle = (share + z * z / (2 * asked)) / scale
    half = z * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)


def _row(right: int, asked: int) -> dict[str, float]:
    low, high = wilson(right, asked)
    return {"right": right, "asked": asked, "share": right / asked, "low95": low, "high95": high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=60, help="clips a canvas")
    parser.add_argument("--seed", type=int, default=20_000)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    report: dict[str, object] = {"clips_per_canvas": args.clips, "seed": args.seed}
    for number, canvas in enumerate(CANVASES):
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            found = calibrate(args.clips, args.seed + number, canvas, Path(folder))
        seconds = (time.perf_counter() - begin) / args.clips
        report[f"{canvas.width}x{canvas.height}"] = {"seconds_per_clip": round(seconds, 3), **found.table()}
        print(f"{canvas.width}x{canvas.height}: {found.accuracy:.4f} of {sum(found.asked.values())}")
    args.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
