"""The picture for the documents: captions, counts, and never larger than the repository should carry."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import tiny_h3_sheet
from tiny_h3.sheet import Strip, drawn
from tiny_h3_sheet import english_prompts
from vflash_adapters.judge.verdict import AttributeVerdict, Verdict


def strip(number: int) -> Strip:
    """Grey frames that get brighter, one of two attributes right."""
    rows = [AttributeVerdict(name=name, expected="x", measured="y", right=name == "a") for name in "ab"]
    frames = np.broadcast_to(np.linspace(0, 240, 9, dtype=np.uint8)[:, None, None, None], (9, 32, 64, 3))
    note = tiny_h3_sheet._count(Verdict(attributes=tuple(rows)))
    return Strip(caption=f"clip {number}", note=note, frames=np.ascontiguousarray(frames))


def test_strips_go_from_first_to_last_frame() -> None:
    """Two columns; each strip begins with the first frame and ends with the last."""
    sheet = np.asarray(drawn([strip(0), strip(1), strip(2)], columns=2, frames=5))
    assert sheet.shape == (2 * 32 + 2 * 14 + 6, 2 * 5 * 64 + 6, 3)
    assert sheet[20, 10, 0] == 0
    assert sheet[20, 5 * 64 - 10, 0] == 240
    assert sheet[20, 5 * 64 + 6 + 10, 0] == 0
    assert (sheet[:14, : 5 * 64] < 100).any(axis=(0, 2))[-40:].any(), "the count is missing"


def test_noise_gets_fewer_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be too large is quantised until it fits; what cannot fit is an error."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (100, 100, 3), dtype=np.uint8))
    monkeypatch.setattr(tiny_h3_sheet, "MAX_BYTES", 8_000)
    content = tiny_h3_sheet.small_png(noise)
    assert len(content) <= 8_000
    assert len(Image.open(io.BytesIO(content)).getcolors() or []) < 256
    monkeypatch.setattr(tiny_h3_sheet, "MAX_BYTES", 1_000)
    with pytest.raises(ValueError, match="does not fit"):
        tiny_h3_sheet.small_png(noise)


def test_captions_are_the_gate_s_own() -> None:
    """The first English ones, in order."""
    numbers = [prompt.number for prompt in english_prompts(16)]
    assert numbers == [number for number in range(24) if number % 3 != 2]
