"""Latents to rows and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash.model.patching import patchify, sound_latents, sound_rows, unpatchify

SMALL = st.integers(1, 4)


@settings(deadline=None, max_examples=40)
@given(SMALL, SMALL, SMALL, SMALL, SMALL, SMALL)
def test_round_trip(channels, frames, rows, columns, patch_h, patch_w):
    """unpatchify undoes patchify for any patch; the row count is one a patch."""
    patch, height, width = (1, patch_h, patch_w), rows * patch_h, columns * patch_w
    latents = torch.randn(1, channels, frames, height, width)
    packed = patchify(latents, patch)
    assert packed.shape == (frames * rows * columns, channels * patch_h * patch_w)
    assert torch.equal(unpatchify(packed, patch, channels=channels, frames=frames, height=height, width=width), latents)


def test_a_row_is_channel_then_patch_and_rows_run_along_the_width():
    """Row (t, y, x), value (c, dy, dx): written out by hand."""
    channels, frames, height, width = 3, 2, 4, 6
    latents = torch.arange(channels * frames * height * width).reshape(1, channels, frames, height, width)
    packed = patchify(latents, (1, 2, 2))
    for t in range(frames):
        for y in range(height // 2):
            for x in range(width // 2):
                row = packed[(t * (height // 2) + y) * (width // 2) + x]
                expected = [
                    latents[0, c, t, 2 * y + dy, 2 * x + dx] for c in range(channels) for dy in (0, 1) for dx in (0, 1)
                ]
                assert row.tolist() == [int(value) for value in expected]


@pytest.mark.parametrize("count", [1, 7])
def test_sound_rows_are_channel_major(count):
    """All of the left channel, then all of the right; back again with channels first and time last."""
    latents = torch.randn(2, count, 32)
    rows = sound_rows(latents)
    assert torch.equal(rows[:count], latents[0])
    assert torch.equal(rows[count:], latents[1])
    assert torch.equal(sound_latents(rows, 2), latents.transpose(1, 2))
