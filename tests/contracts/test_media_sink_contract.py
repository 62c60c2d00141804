"""Every sink delivers the same clip exactly, publishes it whole or not at all, and refuses what it cannot deliver."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vflash_adapters.media.ffmpeg_file import FfmpegFileSink
from vflash_adapters.media.ffmpeg_pipe import FfmpegPipeSink
from vflash_ports.media import Clip, MediaSink

SINKS = {"file": FfmpegFileSink(), "pipe": FfmpegPipeSink()}


@pytest.fixture(params=sorted(SINKS))
def sink(request: pytest.FixtureRequest) -> MediaSink:
    return SINKS[request.param]


def smooth_frames(count: int, width: int, height: int) -> torch.Tensor:
    """[F, 3, H, W] in [0, 1]: slow gradients, which a codec at CRF 18 keeps within a few steps."""
    t = torch.arange(count).view(-1, 1, 1) / 48
    y = torch.arange(height).view(1, -1, 1) / height
    x = torch.arange(width).view(1, 1, -1) / width
    planes = [
        0.5 + 0.4 * torch.sin(3 * x + t),
        0.5 + 0.4 * torch.cos(2 * y - t),
        0.3 + 0.3 * x * y,
    ]
    return torch.stack([plane.expand(count, height, width) for plane in planes], dim=1)


def tone(frames: int, rate: int = 32000, fps: int = 24) -> torch.Tensor:
    samples = torch.arange(frames * rate // fps) / rate
    return torch.stack([0.4 * torch.sin(2 * torch.pi * 440 * samples), 0.2 * torch.sin(2 * torch.pi * 220 * samples)])


def clip_of(frames: torch.Tensor, waveform: torch.Tensor, *, chunk: int = 17, frame_count: int | None = None) -> Clip:
    return Clip(
        width=frames.shape[3],
        height=frames.shape[2],
        frame_count=frames.shape[0] if frame_count is None else frame_count,
        fps=24,
        frames=iter(frames.split(chunk)),
        waveform=waveform,
        sample_rate_hz=32000,
    )


@pytest.mark.parametrize("seconds", [1, 5, 15])
def test_counts_sizes_and_clock_are_exact(sink: MediaSink, seconds: int, tmp_path: Path) -> None:
    """A clip of s seconds has exactly 24 s frames and 32000 s samples, measured on the written file."""
    frames = smooth_frames(24, 64, 32).repeat(seconds, 1, 1, 1)
    delivery = sink.write(clip_of(frames, tone(len(frames))), tmp_path / "out.mp4")
    assert (delivery.frames, delivery.audio_samples) == (24 * seconds, 32000 * seconds)
    assert (delivery.width, delivery.height, delivery.fps, delivery.sample_rate_hz) == (64, 32, 24.0, 32000)
    assert list(tmp_path.iterdir()) == [tmp_path / "out.mp4"]
