"""`vflash inspect` counts, times and listens as the file was made, and its contact sheet shows it."""

from __future__ import annotations

import errno
import json
import math
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vflash.native.h3_media import encode_mp4
from vflash.stages.loudness import levels
from vflash_adapters.media.inspect import inspect_file
from vflash_adapters.media.reference_reader import FileReferenceReader
from vflash_ports.errors import DeliveryError, MediaError


def moving(frames: int) -> torch.Tensor:
    """[1, 3, F, 48, 64]: a bar that moves, on a level that never jumps."""
    x = torch.arange(64).view(1, 1, 1, 1, -1)
    t = torch.arange(frames).view(1, 1, -1, 1, 1)
    return (0.4 + 0.3 * torch.sin((x + 2 * t) * math.pi / 16)).expand(1, 3, frames, 48, 64).contiguous()


def tone(frames: int, level: float = 0.25) -> torch.Tensor:
    seconds = torch.arange(frames * 32000 // 24) / 32000
    return (level * torch.sin(2 * math.pi * 997 * seconds)).expand(1, 2, -1).contiguous()


def test_a_sound_clip_is_reported_as_it_was_made(tmp_path: Path) -> None:
    """Exact counts and times, no black, no frozen frame, no jump, and the tone's loudness within 0.2 LU."""
    encode_mp4(moving(72), tone(72), tmp_path / "out.mp4")
    found = inspect_file(tmp_path / "out.mp4", meter=levels)
    assert json.loads(json.dumps(found)) == found
    assert (found["frames"], found["video"]["seconds"], found["video"]["fps"]) == (72, 3.0, 24.0)
    assert (found["sound"]["samples"], found["sound"]["seconds"], found["sound"]["channels"]) == (96000, 3.0, 2)
    assert found["streams"] == [{"type": "video", "codec": "h264"}, {"type": "audio", "codec": "aac"}]
    assert (found["black_frames"], found["frozen_frames"], found["sound"]["clipped_samples"]) == ([], [], 0)
    assert found["sound"]["integrated_lufs"] == pytest.approx(20 * math.log10(0.25), abs=0.2)
    assert [jump["frame"] for jump in found["boundary_jumps"]] == [17, 34, 51, 68]
    assert all(jump["jump"] < 1 for jump in found["boundary_jumps"])


def test_faults_are_found_where_they_are(tmp_path: Path) -> None:
    """Black frames 10-14, a freeze from 30 to 39, a jump of 30 levels at frame 51, clipped and then silent sound."""
    video = moving(72)
    video[:, :, 10:15] = 0
    video[:, :, 30:40] = video[:, :, 29:30]
    video[:, :, 51:] += 30 / 255
    encode_mp4(video, 4 * tone(72, level=0.7), tmp_path / "out.mp4", crf=1)
    found = inspect_file(tmp_path / "out.mp4", meter=levels)
    assert found["black_frames"] == [[10, 14]]
    assert [30, 39] in found["frozen_frames"]
    jumps = {jump["frame"]: jump["jump"] for jump in found["boundary_jumps"]}
    assert jumps[51] == pytest.approx(30, abs=1.5)
    assert max(jumps[17], jumps[34], jumps[68]) < 2
    assert found["sound"]["clipped_samples"] > 1000
    encode_mp4(moving(24), tone(24), tmp_path / "silent.mp4", audio_delivery_profile="silent-v1")
    sound = inspect_file(tmp_path / "silent.mp4", meter=levels)["sound"]
    assert (sound["silent"], sound["integrated_lufs"], sound["true_peak_dbtp"]) == (True, None, None)


def test_a_contact_sheet_on_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the sheet; nothing of it is left."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    encode_mp4(moving(24), tone(24), tmp_path / "out.mp4")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(DeliveryError, match=r"sheet\.png: could not be written .*No space left.*free space"):
        inspect_file(tmp_path / "out.mp4", meter=levels, contact_sheet=tmp_path / "sheet.png")
    assert sorted(tmp_path.iterdir()) == before


def test_the_contact_sheet_shows_frames_over_time(tmp_path: Path) -> None:
    """Twelve frames, first and last included, brighter to the right as the clip is; never over a file."""
    ramp = torch.linspace(0.1, 0.9, 48).view(1, 1, -1, 1, 1).expand(1, 3, 48, 48, 64).contiguous()
    encode_mp4(ramp, tone(48), tmp_path / "out.mp4")
    inspect_file(tmp_path / "out.mp4", meter=levels, contact_sheet=tmp_path / "sheet.png")
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    cell_width, cell_height = 244, 18 + 180 + 4
    middles = [
        float(sheet[row * cell_height + 108, 4 + column * cell_width + 120].mean())
        for row in range(2)
        for column in range(6)
    ]
    assert middles == sorted(middles)
    assert middles[0] == pytest.approx(0.1 * 255, abs=4)
    assert middles[-1] == pytest.approx(0.9 * 255, abs=4)
    assert sheet.shape == (2 * cell_height + 96 + 8, 4 + 6 * cell_width, 3)
    wave = sheet[2 * cell_height + 4 :]
    assert ((wave == (110, 170, 240)).all(axis=-1)).any(axis=0).mean() > 0.9
    with pytest.raises(MediaError, match="exists already"):
        inspect_file(tmp_path / "out.mp4", meter=levels, contact_sheet=tmp_path / "sheet.png")
    with pytest.raises(MediaError, match=r"must end in \.png"):
        inspect_file(tmp_path / "out.mp4", meter=levels, contact_sheet=tmp_path / "sheet.jpg")


READERS: dict[str, Callable[[Path], object]] = {
    "clip": lambda path: inspect_file(path, meter=levels),
    "picture": FileReferenceReader().picture,
    "video": lambda path: FileReferenceReader().video(path, max_frames=13, sample_rate_hz=32000),
    "sound": lambda path: FileReferenceReader().audio(path, max_seconds=1.0, sample_rate_hz=32000),
}


@pytest.mark.parametrize("what", READERS)
def test_a_file_is_called_what_its_reader_takes_it_for(tmp_path: Path, what: str) -> None:
    """A clip to inspect is no reference, a keyframe is a picture: missing, a folder, empty, text."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("neither video nor picture")
    faults = {
        "absent": "does not exist",
        "folder": "is not a regular file",
        "empty": "is empty",
        "text": "is not a PNG" if what == "picture" else "cannot be read as video or sound",
    }
    for name, message in faults.items():
        with pytest.raises(MediaError, match=f"^{what} {tmp_path / name} {message}"):
            READERS[what](tmp_path / name)


def test_sound_alone_is_no_clip(tmp_path: Path) -> None:
    """A sound file is refused by what it lacks."""
    with wave.open(str(tmp_path / "a.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(16000))
    with pytest.raises(MediaError, match=r"^clip .*a\.wav holds no video stream"):
        inspect_file(tmp_path / "a.wav", meter=levels)
