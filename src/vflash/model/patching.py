"""Latents to rows and back. A video row is one (1, h, w) patch, (channel, t, h, w) flattened; frames, rows, columns."""

from __future__ import annotations

import torch


def patchify(latents: torch.Tensor, patch: tuple[int, int, int]) -> torch.Tensor:
    """[1, C, T, H, W] -> [T/t * H/h * W/w, C * t * h * w]."""
    _, c, t, h, w = latents.shape
    pt, ph, pw = patch
    rows = latents.reshape(c, t // pt, pt, h // ph, ph, w // pw, pw)
    return rows.permute(1, 3, 5, 0, 2, 4, 6).reshape(-1, c * pt * ph * pw).contiguous()


def unpatchify(
    rows: torch.Tensor, patch: tuple[int, int, int], *, channels: int, frames: int, height: int, width: int
) -> torch.Tensor:
    """The inverse of `patchify`: [rows, C * t * h * w] -> [1, C, frames, height, width]."""
    pt, ph, pw = patch
    latents = rows.reshape(frames // pt, height // ph, width // pw, channels, pt, ph, pw)
    return latents.permute(3, 0, 4, 1, 5, 2, 6).reshape(1, channels, frames, height, width).contiguous()


def sound_rows(latents: torch.Tensor) -> torch.Tensor:
    """[2, A, C] -> [2 * A, C], channel-major."""
    return latents.reshape(-1, latents.shape[-1]).contiguous()


def sound_latents(rows: torch.Tensor, channels: int) -> torch.Tensor:
    """[channels * A, C] -> [channels, C, A]."""
    return rows.reshape(channels, -1, rows.shape[-1]).transpose(1, 2).contiguous()
