"""Streaming decode: the video VAE works on tiles of windows of latent frames; finished frames wait for no later one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from vflash_adapters.latent_codec.tile_grid import TileGrid, cross_fade
from vflash_ports.errors import ContractError

FRAMES = 2
DecodeTiles = Callable[[torch.Tensor], torch.Tensor]
"""Equal tiles [B, C, 7, h, w] in the decoder's dtype -> [B, 3, 28, 16h, 16w]; it never mixes along the batch."""


def decode_windows(
    vae: Any, latents: torch.Tensor, *, tiles_at_once: int, decode: DecodeTiles | None = None
) -> Iterator[torch.Tensor]:
    """`latents` [1, C, T, h, w], denormalised, T = 5n + 2 with n >= 1 in the release -> chunks [1, 3, f, H, W].

    Window i covers latents [5i, 5i + 7) and decodes to 22 frames; its last 5 are cross-faded with the first 5 of the
    next window. Yields 17 frames a window, then the 5 left over: the pixels of one whole decode, bit for bit with
    `tiles_at_once` of 1. With more, each matrix product has more rows, and a device may round it in another order.
    `decode` stands in for the VAE's own decoder.
    """
    step, overlap = vae.tokens_chunk_size, vae.token_overlap
    count = latents.shape[FRAMES]
    if count < step + overlap or count % step != overlap:
        raise ContractError(f"{count} latent frames cannot be decoded: the video VAE needs {step}n + {overlap}, n >= 1")
    windows = [latents[:, :, start : start + step + overlap] for start in range(0, count - overlap, step)]
    tail: torch.Tensor | None = None
    for clip in _clips(vae, windows, tiles_at_once, decode or own_decoder(vae)):
        head, next_tail = _kept_frames(vae, clip)
        yield head if tail is None else cross_fade(tail, head, tail.shape[FRAMES], axis=FRAMES)
        tail = next_tail
    if tail is not None:
        yield tail


def own_decoder(vae: Any) -> DecodeTiles:
    def decode(tiles: torch.Tensor) -> torch.Tensor:
        pixels: torch.Tensor = vae.decoder(vae.post_quant_conv(tiles))
        return pixels

    return decode


def _clips(
    vae: Any, windows: Sequence[torch.Tensor], tiles_at_once: int, decode: DecodeTiles
) -> Iterator[torch.Tensor]:
    """Whole windows [1, 3, 28, H, W], each as soon as its last tile is there. A batch runs on into the next window."""
    grid = TileGrid.of(vae, windows[0])
    waiting = (tile for window in windows for tile in grid.cut(window))
    decoded: list[torch.Tensor] = []
    while batch := list(islice(waiting, tiles_at_once)):
        with torch.no_grad():
            decoded += decode(torch.cat(batch).to(vae.post_quant_conv.weight.dtype)).split(1)
        while len(decoded) >= len(grid):
            clip = grid.stitch(decoded[: len(grid)])
            del decoded[: len(grid)]
            yield clip


def _kept_frames(vae: Any, clip: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """17 frames of a window's own, 5 that the next one shares: each part begins with 3 that stand for no frame."""
    padding, own = vae.frame_pre_padding, vae.tokens_chunk_size * vae.temporal_compression_ratio
    return clip[:, :, padding:own], clip[:, :, own + padding :]
