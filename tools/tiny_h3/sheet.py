"""A contact sheet: a strip of frames for each clip, the caption above it and a note at its right end."""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray
from PIL import Image, ImageDraw

_CAPTION = 14
_GAP = 6


@frozen(kw_only=True, eq=False)
class Strip:
    """`frames` uint8 RGB [F, H, W, 3] of a whole clip."""

    caption: str
    note: str
    frames: NDArray[np.uint8]


def drawn(strips: list[Strip], *, columns: int, frames: int) -> Image.Image:
    """Strips of `frames` frames, first and last included, in columns."""
    height, width = strips[0].frames.shape[1:3]
    cell_width, cell_height = frames * width + _GAP, height + _CAPTION + _GAP
    rows = -(-len(strips) // columns)
    sheet = Image.new("RGB", (columns * cell_width - _GAP, rows * cell_height - _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for number, strip in enumerate(strips):
        left, top = number % columns * cell_width, number // columns * cell_height
        draw.text((left + 2, top), strip.caption, fill="black")
        draw.text((left + frames * width - 2, top), strip.note, fill="black", anchor="ra")
        for place in range(frames):
            frame = strip.frames[round(place * (len(strip.frames) - 1) / (frames - 1))]
            sheet.paste(Image.fromarray(frame), (left + place * width, top + _CAPTION))
    return sheet
