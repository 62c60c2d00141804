"""Streaming decode: the video VAE works on windows of latent frames, so finished frames need not wait for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from vflash_ports.errors import ContractError


def decode_windows(vae: Any, latents: torch.Tensor) -> Iterator[torch.Tensor]:
    """`latents` [1, C, T, h, w], denormalised, T = 5n + 2 with n >= 1 in the release -> chunks [1, 3, f, H, W].

    Window i covers latents [5i, 5i + 7) and decodes to 22 frames; its last 5 are cross-faded with the first 5 of the
    next window. Yields 17 frames a window, then the 5 left over: the pixels of one whole decode, bit for bit.
    """
    step, overlap = vae.tokens_chunk_size, vae.token_overlap
    count = latents.shape[2]
    if count < step + overlap or count % step != overlap:
        raise ContractError(f"{count} latent frames cannot be decoded: the video VAE needs {step}n + {overlap}, n >= 1")
    tail: torch.Tensor | None = None
    for start in range(0, count - overlap, step):
        with torch.no_grad():
            clip = vae.decode(latents[:, :, start : start + step + overlap], return_dict=False)[0]
        head, next_tail = clip.split([vae.config.clip_length, vae.frame_overlap], dim=2)
        yield head if tail is None else _cross_fade(tail, head)
        tail = next_tail
    if tail is not None:
        yield tail


def _cross_fade(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """`before` fades out over the first frames of `after`, linearly, in the decoder's own dtype."""
    frames = before.shape[2]
    rising = (torch.arange(frames, device=after.device, dtype=after.dtype) / frames).view(1, 1, -1, 1, 1)
    faded = before * (1 - rising) + after[:, :, :frames] * rising
    return torch.cat([faded, after[:, :, frames:]], dim=2)
