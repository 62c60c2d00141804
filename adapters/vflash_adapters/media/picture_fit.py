"""Putting a picture onto another size, as the released model's own preparation does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vflash_ports.errors import MediaError
from vflash_ports.media import PictureFit

if TYPE_CHECKING:
    import torch
    from PIL import Image


def fit_picture(pixels: torch.Tensor, width: int, height: int, mode: PictureFit) -> torch.Tensor:
    """uint8 RGB [..., H, W, 3] -> [..., height, width, 3] by Pillow's LANCZOS; the right size passes unchanged.

    Cover scales by the larger ratio, rounds both sides half to even, and cuts at half the surplus, rounded down.
    """
    import torch

    if pixels.dtype is not torch.uint8 or pixels.ndim < 3 or pixels.shape[-1] != 3 or pixels.numel() == 0:
        raise MediaError(f"a picture to fit must be uint8 [..., H, W, 3], not {pixels.dtype} {list(pixels.shape)}")
    if width < 1 or height < 1:
        raise MediaError(f"a picture cannot be fitted to {width}x{height}")
    if pixels.shape[-3:-1] == (height, width):
        return pixels
    frames = pixels.reshape(-1, *pixels.shape[-3:])
    fitted = torch.stack([_fit_frame(frame, width, height, mode) for frame in frames])
    return fitted.reshape(*pixels.shape[:-3], height, width, 3)


def _fit_frame(frame: torch.Tensor, width: int, height: int, mode: PictureFit) -> torch.Tensor:
    import numpy as np
    import torch
    from PIL import Image

    picture = Image.fromarray(frame.contiguous().numpy())
    fitted = _stretched(picture, width, height) if mode is PictureFit.STRETCH else _covered(picture, width, height)
    return torch.from_numpy(np.array(fitted))


def _stretched(picture: Image.Image, width: int, height: int) -> Image.Image:
    from PIL import Image

    return picture.resize((width, height), Image.Resampling.LANCZOS)


def _covered(picture: Image.Image, width: int, height: int) -> Image.Image:
    scale = max(width / picture.width, height / picture.height)
    scaled_width = max(width, round(picture.width * scale))
    scaled_height = max(height, round(picture.height * scale))
    left, top = (scaled_width - width) // 2, (scaled_height - height) // 2
    return _stretched(picture, scaled_width, scaled_height).crop((left, top, left + width, top + height))
