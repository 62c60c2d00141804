"""Sizes, budgets and patches of the vision inputs (equality with the public processor is a golden test)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash_adapters.text_encoder.vision_inputs import (
    VisionRecipe,
    fit_picture,
    fit_video,
    picture_block,
    read_recipe,
    video_block,
)
from vflash_ports.errors import CheckpointError, MediaError

RELEASED = VisionRecipe(
    smallest=65_536,
    largest=16_777_216,
    patch=16,
    temporal_patch=2,
    merge=2,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    rescale=1 / 255,
)
sides = st.integers(16, 6000)


@given(sides, sides)
@settings(deadline=None, max_examples=200)
def test_a_fitted_picture_is_whole_patches_within_the_budget(height: int, width: int) -> None:
    """Both sides are multiples of 32 and the area is in the budget, for any aspect up to 200."""
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(MediaError, match="crop it"):
            fit_picture(height, width, RELEASED)
        return
    fitted = fit_picture(height, width, RELEASED)
    assert all(side % 32 == 0 and side > 0 for side in fitted)
    assert RELEASED.smallest <= math.prod(fitted) <= RELEASED.largest


@pytest.mark.parametrize(
    ("size", "fitted", "text_rows"),
    [((32, 32), (256, 256), 64), ((768, 1344), (768, 1344), 1008), ((2048, 3072), (2048, 3072), 6144)],
)
def test_known_sizes(size: tuple[int, int], fitted: tuple[int, int], text_rows: int) -> None:
    """The sizes and token counts measured on the release: a keyframe never costs fewer than 64 rows."""
    assert fit_picture(*size, RELEASED) == fitted
    assert math.prod(fitted) // 32**2 == text_rows


def test_an_odd_video_is_sized_before_it_is_padded() -> None:
    """Three frames get another size than the same three with the last repeated, once the budget binds."""
    tight = VisionRecipe(**{**{f: getattr(RELEASED, f) for f in RELEASED.__slots__ if f[0] != "_"}, "largest": 20_000})
    assert fit_video(3, 64, 96, tight) != fit_video(4, 64, 96, tight)
    frames = torch.zeros(3, 64, 96, 3, dtype=torch.uint8)
    assert video_block(frames, tight).grid[0] == 2


def test_a_small_video_is_enlarged_first() -> None:
    """A side below one merged patch is scaled up to it, keeping the aspect."""
    assert fit_video(2, 8, 64, VisionRecipe(**{**_fields(RELEASED), "smallest": 1})) == (32, 256)


def test_patches_hold_the_pixels_in_order() -> None:
    """A picture that needs no resize comes back exactly: cells in rows, 2 x 2 patches in a cell, twice in time."""
    pixels = torch.arange(256 * 256 * 3).reshape(256, 256, 3).remainder(251).to(torch.uint8)
    block = picture_block(pixels, RELEASED)
    assert block.grid == (1, 16, 16)
    assert block.tokens == 64
    cell = block.patches[:4].reshape(2, 2, 3, 2, 16, 16)
    expected = (pixels[:32, :32].permute(2, 0, 1).float() - 127.5) / 127.5
    for time in range(2):
        seen = cell[:, :, :, time].permute(2, 0, 3, 1, 4).reshape(3, 32, 32)
        torch.testing.assert_close(seen, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do_resize": False}, "do_resize"),
        ({"cap_pixels_per_frame": True}, "cap_pixels_per_frame"),
        ({"resample": 2}, "resample"),
        ({"size": {}}, "shortest_edge"),
        ({"patch_size": None}, "lacks"),
    ],
)
def test_another_recipe_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """A processor config that asks for what is not implemented, or lacks a field, is an error naming it."""
    config = {
        "size": {"shortest_edge": 1024, "longest_edge": 4096},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(config))
    assert read_recipe(path).smallest == 1024
    path.write_text(json.dumps(config | change))
    with pytest.raises(CheckpointError, match=message):
        read_recipe(path)


def _fields(recipe: VisionRecipe) -> dict[str, object]:
    return {name: getattr(recipe, name) for name in recipe.__slots__ if not name.startswith("_")}
