"""How far a decode is from another: in the VAE's own space, as pictures, and as the 8-bit pictures that are shown."""

from __future__ import annotations

import math
from typing import Any

import torch

from vflash_adapters.latent_codec.delivered_frames import PIXEL_MEAN, PIXEL_STD, per_channel


def differences(pixels: torch.Tensor, expected: torch.Tensor) -> dict[str, Any]:
    """[1, 3, F, H, W] in the VAE's space, frame by frame, so that no second copy in float64 is needed.

    `psnr_db` is of pictures in [0, 1], `psnr_8bit_db` of whole steps of 255; null where nothing differs.
    """
    sums = dict.fromkeys(("difference", "expected", "picture", "steps"), 0.0)
    largest = largest_step = same = 0.0
    for found, wanted in zip(pixels.unbind(2), expected.unbind(2), strict=True):
        shown = [_shown(frame) for frame in (found, wanted)]
        steps = (shown[0] * 255).round() - (shown[1] * 255).round()
        difference = found.double() - wanted.double()
        sums["difference"] += float(difference.square().sum())
        sums["expected"] += float(wanted.double().square().sum())
        sums["picture"] += float((shown[0] - shown[1]).square().sum())
        sums["steps"] += float(steps.square().sum())
        largest = max(largest, float(difference.abs().max()))
        largest_step = max(largest_step, float(steps.abs().max()))
        same += float((steps == 0).double().sum())
    count = pixels.numel()
    return {
        "equal": torch.equal(pixels, expected),
        "largest_difference": largest,
        "relative_error": (sums["difference"] / sums["expected"]) ** 0.5,
        "psnr_db": _psnr_db(1.0, sums["picture"] / count),
        "psnr_8bit_db": _psnr_db(255.0, sums["steps"] / count),
        "largest_8bit_step": largest_step,
        "same_8bit_share": same / count,
    }


def _shown(frame: torch.Tensor) -> torch.Tensor:
    """[1, 3, H, W] -> float64 in [0, 1]."""
    wide = frame.double()[:, :, None]
    return (wide * per_channel(PIXEL_STD, wide.device) + per_channel(PIXEL_MEAN, wide.device)).clamp(0, 1)


def _psnr_db(peak: float, mean_square: float) -> float | None:
    return 10 * math.log10(peak * peak / mean_square) if mean_square else None
