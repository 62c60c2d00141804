"""Tiles in batches against the reference's whole decode, on canvases of several tiles both ways."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash_adapters.latent_codec.decode_windows import decode_windows
from vflash_adapters.latent_codec.load_vae import VIDEO_VAE, load_vae
from vflash_adapters.latent_codec.tile_grid import TileGrid, tile_axis
from vflash_adapters.weights.mmap_source import MmapWeights

CPU = torch.device("cpu")
RELEASED = {"tile": 256, "least_overlap": 64, "step": 16}
# Height, width, latent frames, tiles of one window.
CANVASES = [(288, 320, 12, 4), (288, 544, 7, 6), (32, 64, 22, 1)]


def opened(model_dir: Path, dtype: torch.dtype) -> Any:
    return load_vae(VIDEO_VAE, model_dir, weights=MmapWeights, device=CPU, dtype=dtype)


@pytest.fixture(scope="module")
def vae(tiny_checkpoints: Mapping[str, Path]) -> Any:
    return opened(tiny_checkpoints["small"], torch.float32)


def noise(height: int, width: int, frames: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, 24, frames, height // 16, width // 16, generator=generator)


def whole(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        pixels: torch.Tensor = vae.decode(latents, return_dict=False)[0]
    return pixels


@pytest.mark.parametrize(("height", "width", "frames", "tiles"), CANVASES)
def test_batches_of_tiles_equal_the_reference(vae: Any, height: int, width: int, frames: int, tiles: int) -> None:
    """Float32 on a CPU: the reference's bits, whether or not batches divide a window's tiles or span windows."""
    latents = noise(height, width, frames)
    expected = whole(vae, latents)
    assert len(TileGrid.of(vae, latents)) == tiles
    for tiles_at_once in (1, 3, 4, 16):
        found = torch.cat(list(decode_windows(vae, latents, tiles_at_once=tiles_at_once)), dim=2)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_bfloat16_equals_the_reference(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Cross-fades are weighted in the decoder's own dtype, so rounding is the reference's too."""
    vae, latents = opened(tiny_checkpoints["other"], torch.bfloat16), noise(288, 320, 7)
    found = torch.cat(list(decode_windows(vae, latents, tiles_at_once=3)), dim=2)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, whole(vae, latents), rtol=0, atol=0)


def test_clips_are_handed_on_as_soon_as_their_tiles_are_there(vae: Any) -> None:
    """Four tiles a window, three at once: two batches give clip 0, one more each later one."""
    batches: list[int] = []
    hook = vae.decoder.register_forward_pre_hook(lambda _, given: batches.append(len(given[0])))
    vae.decoder.forward, original = (
        lambda tiles: torch.zeros(len(tiles), 3, 28, *(16 * side for side in tiles.shape[-2:])),
        vae.decoder.forward,
    )
    try:
        clips = decode_windows(vae, noise(288, 320, 17), tiles_at_once=3)
        seen = [(clip.shape[2], list(batches)) for clip in clips]
    finally:
        vae.decoder.forward = original
        hook.remove()
    assert seen == [(17, [3, 3]), (17, [3, 3, 3]), (17, [3, 3, 3, 3]), (5, [3, 3, 3, 3])]


def test_the_released_canvases() -> None:
    """Tile starts of 768 and 1344 pixels; 256 is one tile of its own, and so is less."""
    assert tile_axis(768, **RELEASED).starts == (0, 160, 336, 512)
    assert tile_axis(1344, **RELEASED).starts == (0, 176, 352, 528, 704, 896, 1088)
    for length in (32, 256):
        axis = tile_axis(length, **RELEASED)
        assert (axis.starts, axis.size, axis.overlaps) == ((0,), length, ())


@settings(deadline=None, max_examples=150)
@given(latents=st.integers(2, 256))
def test_tiles_lie_where_the_reference_puts_them(vae: Any, latents: int) -> None:
    """Starts, size and overlaps of any length; they cover it exactly and every overlap is at least 64 pixels."""
    axis = tile_axis(16 * latents, **RELEASED)
    starts, sizes, overlaps = vae._split_tiles(16 * latents, 256, 64)
    assert (list(axis.starts), [axis.size] * len(axis.starts), list(axis.overlaps)) == (starts, sizes, overlaps)
    assert axis.starts[-1] + axis.size == 16 * latents
    assert all(overlap >= 64 for overlap in axis.overlaps)
