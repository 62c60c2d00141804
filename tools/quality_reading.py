"""A delivered MP4 as arrays: through PyAV, or where that is not installed through the FFmpeg that made it."""

from __future__ import annotations

import subprocess
from enum import StrEnum
from pathlib import Path

import numpy as np

from tiny_h3.world import FPS, SAMPLE_RATE_HZ
from vflash_adapters.judge.reading import PlayedClip, read_clip
from vflash_adapters.media.ffmpeg_binary import find_ffmpeg
from vflash_adapters.strict_json import parse_object


class Reader(StrEnum):
    PYAV = "pyav"
    FFMPEG = "ffmpeg"


def read(reader: Reader, path: Path) -> PlayedClip:
    return read_clip(path) if reader is Reader.PYAV else _through_ffmpeg(path)


def _through_ffmpeg(path: Path) -> PlayedClip:
    """Size from the receipt beside the clip; 24 fps and 32 kHz are the product's own."""
    canvas = parse_object(path.with_suffix(".receipt.json").read_bytes(), str(path))["canvas"]
    pictures = _decoded(path, "-map", "0:v:0", "-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24")
    sound = _decoded(path, "-map", "0:a:0", "-f", "f32le", "-ac", "2", "-ar", str(SAMPLE_RATE_HZ))
    return PlayedClip(
        frames=np.frombuffer(pictures, dtype=np.uint8).reshape(-1, canvas["height"], canvas["width"], 3),
        fps=FPS,
        waveform=np.frombuffer(sound, dtype="<f4").reshape(-1, 2).T.copy(),
        sample_rate_hz=SAMPLE_RATE_HZ,
    )


def _decoded(path: Path, *options: str) -> bytes:
    command = [str(find_ffmpeg()), "-v", "error", "-nostdin", "-i", str(path), *options, "pipe:1"]
    return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
