"""Reference videos of any rate come out upright on the 24 fps clock, cut, with their sound."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from vflash_adapters.media.ffmpeg_binary import find_ffmpeg
from vflash_adapters.media.reference_limits import ReferenceLimits
from vflash_adapters.media.reference_reader import FileReferenceReader
from vflash_ports.errors import MediaError

READER = FileReferenceReader()
VideoWriter = Callable[..., Path]


def indices(frames: torch.Tensor) -> list[int]:
    """The painted index (mod 16) of each frame, read back from its brightness."""
    levels = frames.float().mean(dim=(1, 2, 3))
    found = [round((float(level) - 8) / 15) for level in levels]
    assert all(abs(float(level) - 8 - 15 * index) < 4 for level, index in zip(levels, found, strict=True))
    return found


def by_rule(count: int, rate: Fraction, limit: int) -> list[int]:
    slots = [math.floor(index * (24 / float(rate)) + 0.5) for index in range(count + 1)]
    held = [index for index in range(count) for _ in range(slots[index + 1] - slots[index])]
    return [index % 16 for index in held[:limit]]


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi"])
@pytest.mark.parametrize(
    "rate", [Fraction(24), Fraction(24000, 1001), Fraction(30000, 1001), Fraction(60), Fraction(10)]
)
def test_any_steady_rate_is_repeated_and_dropped_by_the_rule(
    rate: Fraction, suffix: str, write_video: VideoWriter
) -> None:
    """Slots floor(i * 24 / rate + 0.5), the last frame held to the slot its end rounds to, in every container."""
    path = write_video(f"v.{suffix}", range(40), rate=rate)
    clip = READER.video(path, max_frames=1000, sample_rate_hz=32000)
    assert clip.frames is not None
    assert indices(clip.frames) == by_rule(40, rate, 1000)
    assert clip.waveform is None


def test_a_variable_rate_keeps_its_times(write_video: VideoWriter) -> None:
    """Ten frames at 10 fps then twenty at 60 fps: each slot shows the frame that was on screen at that time."""
    ticks = [6 * k for k in range(10)] + [60 + k for k in range(20)]
    path = write_video("v.mp4", ticks, rate=Fraction(60), time_base=Fraction(1, 60))
    clip = READER.video(path, max_frames=1000, sample_rate_hz=32000)
    assert clip.frames is not None
    starts = [math.floor(tick * 24 / 60 + 0.5) for tick in [*ticks, 80]]
    wanted = [k % 16 for k in range(30) for _ in range(starts[k + 1] - starts[k])]
    assert indices(clip.frames) == wanted


def test_a_long_video_and_its_sound_are_cut_to_the_asked_frames(write_video: VideoWriter) -> None:
    """Frames stop at max_frames and sound at max_frames / 24 seconds of its own rate."""
    time = np.arange(3 * 44100) / 44100
    sound = np.stack([0.5 * np.sin(2 * np.pi * 440 * time), 0.25 * np.sin(2 * np.pi * 220 * time)])
    path = write_video("v.mkv", range(72), sound=sound, sound_rate_hz=44100)
    clip = READER.video(path, max_frames=30, sample_rate_hz=32000)
    assert clip.frames is not None
    assert indices(clip.frames) == by_rule(72, Fraction(24), 30)
    assert clip.waveform is not None
    assert clip.waveform.shape == (2, 40000)
    wanted = 0.5 * torch.sin(2 * math.pi * 440 * torch.arange(40000) / 32000)
    assert float((clip.waveform[0] - wanted)[300:-300].abs().max()) < 4e-3


def test_frames_are_sized_while_they_are_read(write_video: VideoWriter) -> None:
    """`size` sees the upright source size once; every frame comes out in the size it names. Odd sizes are fine."""
    asked: list[tuple[int, int]] = []

    def size(width: int, height: int) -> tuple[int, int]:
        asked.append((width, height))
        return 64, 32

    path = write_video("v.mkv", range(20), size=(94, 62))
    clip = READER.video(path, max_frames=20, sample_rate_hz=32000, size=size)
    assert clip.frames is not None
    assert clip.frames.shape == (20, 32, 64, 3)
    assert asked == [(94, 62)]


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotation_is_undone(degrees: int, write_video: VideoWriter, tmp_path: Path) -> None:
    """A stored display matrix turns the frames as FFmpeg shows them."""
    picture = np.zeros((48, 64, 3), dtype=np.uint8)
    picture[:, :32] = 220
    picture[:10] = 120
    plain = write_video("plain.mp4", range(8), frames=[picture] * 8)
    turned, shown = tmp_path / "turned.mp4", tmp_path / "shown.png"
    ffmpeg = [find_ffmpeg(), "-loglevel", "error"]
    subprocess.run([*ffmpeg, "-display_rotation", str(degrees), "-i", plain, "-c", "copy", turned], check=True)
    subprocess.run([*ffmpeg, "-i", turned, "-frames:v", "1", shown], check=True)
    clip = READER.video(turned, max_frames=8, sample_rate_hz=32000)
    assert clip.frames is not None
    wanted = READER.picture(shown)
    assert clip.frames.shape[1:] == wanted.shape
    assert float((clip.frames[0].float() - wanted.float()).abs().mean()) < 3


def test_one_frame_lasts_its_own_time(write_video: VideoWriter) -> None:
    """A single frame at 4 fps is shown for six slots: the caller decides whether that is enough."""
    clip = READER.video(write_video("v.mkv", [0], rate=Fraction(4)), max_frames=100, sample_rate_hz=32000)
    assert clip.frames is not None
    assert indices(clip.frames) == [0] * 6


def test_refusals_name_the_file_and_the_cure(write_video: VideoWriter, tmp_path: Path) -> None:
    """Over the limits, no video at all, a playlist, oblong pixels and zero frames are each refused."""
    path = write_video("v.mp4", range(10))
    playlist = tmp_path / "list.m3u8"
    playlist.write_text(f"#EXTM3U\n#EXT-X-VERSION:3\n#EXTINF:1,\n{path}\n#EXT-X-ENDLIST\n")
    oblong = tmp_path / "oblong.mp4"
    command = [find_ffmpeg(), "-loglevel", "error", "-i", path, "-aspect", "3:1", "-c", "copy", oblong]
    subprocess.run(command, check=True)
    for limits, message in [
        (ReferenceLimits(frame_pixels=64 * 48 - 1), "64x48"),
        (ReferenceLimits(media_bytes=100), "bytes"),
        (ReferenceLimits(duration_s=0.1), "lasts"),
        (ReferenceLimits(clip_bytes=1000), "memory"),
        (ReferenceLimits(decode_s=0.0), "to decode"),
    ]:
        with pytest.raises(MediaError, match=message):
            FileReferenceReader(limits=limits).video(path, max_frames=10, sample_rate_hz=32000)
    for name, message in [("list.m3u8", "cannot be read"), ("oblong.mp4", "square"), ("absent.mp4", "does not exist")]:
        with pytest.raises(MediaError, match=message):
            READER.video(tmp_path / name, max_frames=10, sample_rate_hz=32000)
    with pytest.raises(MediaError, match="at least one"):
        READER.video(path, max_frames=0, sample_rate_hz=32000)
