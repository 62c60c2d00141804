"""Decoded clips to frames in [0, 1], on the device that decoded them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vflash_ports.errors import NonFiniteError

# ImageNet's statistics over [0, 1], the video VAE's pixel convention.
PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)


def delivered_frames(clips: Iterator[torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    """Clips [1, 3, f, H, W] in the VAE's convention, on `device` -> float32 [f, 3, H, W] in [0, 1], there.

    What is not finite is NaN. On the CPU, where looking costs no wait, that is a `NonFiniteError`.
    """
    # Copying even these to a device waits for everything queued there, so not once a clip.
    mean, std = per_channel(PIXEL_MEAN, device), per_channel(PIXEL_STD, device)
    for number, clip in enumerate(clips):
        frames = _frames(clip.float() * std + mean)
        del clip
        if device.type == "cpu" and bool(frames.isnan().any()):
            raise NonFiniteError(f"decoded video clip {number} holds NaN or infinity")
        yield frames
        del frames  # not held while the next clip is decoded


def per_channel(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, device=device).view(1, -1, 1, 1, 1)


def _frames(pixels: torch.Tensor) -> torch.Tensor:
    """Frames first; `pixels` is written over. A clamp alone would hide an infinity."""
    unreadable = pixels.isfinite().logical_not_()
    return pixels.clamp_(0, 1).masked_fill_(unreadable, torch.nan)[0].transpose(0, 1).contiguous()
