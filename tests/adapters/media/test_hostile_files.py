"""Mutated pictures, videos and sounds are read or refused: no crash, no hang, no memory beyond the limit."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

WORKER = Path(__file__).with_name("fuzz_worker.py")
MAX_SECONDS = 5.0
MAX_GROWTH_KIB = 400 << 10
MUTANTS_EACH = 16


def flipped(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 4, 32))):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def flipped_header(data: bytes, draw: random.Random) -> bytes:
    """Sizes, counts and offsets live near the start: make them wild."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 2, 6))):
        place = draw.randrange(min(len(changed), 200))
        value = draw.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00", b"\x00\x00\x40\x00"))
        changed[place : place + 4] = value
    return bytes(changed)


def shortened(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(1, len(data))]


def spliced(data: bytes, draw: random.Random) -> bytes:
    """A stretch repeated elsewhere, as a broken download may have it."""
    start, place = draw.randrange(len(data)), draw.randrange(len(data))
    stretch = data[start : start + draw.randrange(1, 400)]
    return data[:place] + stretch + data[place + draw.randrange(len(stretch)) :]


MUTATIONS = (flipped, flipped_header, shortened, spliced)


@pytest.fixture
def originals(tmp_path: Path, write_video: Callable[..., Path], write_sound: Callable[..., Path]) -> list[Path]:
    y, x = np.mgrid[0:40, 0:56]
    pixels = np.stack([x * 4, y * 6, (x * y) % 256], axis=-1).astype(np.uint8)
    made = []
    for suffix in ("png", "jpg", "webp", "gif", "tiff", "bmp"):
        made.append(tmp_path / f"picture.{suffix}")
        Image.fromarray(pixels).save(made[-1])
    deep = tmp_path / "picture-deep.png"
    Image.fromarray(x.astype(np.uint16) * 999).save(deep)
    tone = np.sin(np.arange(16000) / 9)[None] * 0.4
    for suffix in ("mp4", "mkv", "avi"):
        made.append(write_video(f"video.{suffix}", range(12), rate=Fraction(12), sound=tone, sound_rate_hz=16000))
    for name, codec in (
        ("wav", "pcm_s16le"),
        ("mp3", "libmp3lame"),
        ("flac", "flac"),
        ("m4a", "aac"),
        ("ogg", "libopus"),
    ):
        made.append(write_sound(f"sound.{name}", np.repeat(tone, 3, axis=1), 48000, codec))
    return [*made, deep]


def test_mutants_are_read_or_refused(originals: list[Path], tmp_path: Path) -> None:
    """15 files, 16 mutants each: 240 in one process whose address space is limited."""
    draw = random.Random(711)
    mutants = []
    folder = tmp_path / "mutants"
    folder.mkdir()
    for original in originals:
        data = original.read_bytes()
        for index in range(MUTANTS_EACH):
            mutants.append(folder / f"{original.stem}-{index}{original.suffix}")
            mutants[-1].write_bytes(MUTATIONS[index % len(MUTATIONS)](data, draw))
    assert len(mutants) >= 200
    names = "".join(f"{path}\n" for path in [*originals, *mutants])
    done = subprocess.run(
        [sys.executable, WORKER], input=names, capture_output=True, text=True, timeout=120, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    stopped_at = [*originals, *mutants][len(found)] if len(found) < len(originals) + len(mutants) else None
    assert done.returncode == 0, f"stopped at {stopped_at}: {done.stderr}"
    assert all("read" in outcome for outcome in found[: len(originals)])
    assert max(outcome["seconds"] for outcome in found) < MAX_SECONDS
    assert found[-1]["peak_kib"] - found[len(originals) - 1]["peak_kib"] < MAX_GROWTH_KIB
    refused = [outcome for outcome in found if "refused" in outcome]
    assert len(refused) > 60
    assert all("mutants" in outcome["refused"] for outcome in refused)
