"""A contact sheet: one row a clip, frames from left to right, the caption above."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw

from tiny_h3.evaluate import Sampled

COLUMNS = 8
_CAPTION = 12


def write_sheet(made: list[Sampled], path: Path, *, clips: int = 16) -> None:
    """PNG of the first `clips` clips."""
    chosen = made[:clips]
    height, width = chosen[0].clip.frames.shape[1:3]
    sheet = Image.new("RGB", (COLUMNS * width, len(chosen) * (height + _CAPTION)))
    draw = ImageDraw.Draw(sheet)
    for row, item in enumerate(chosen):
        top = row * (height + _CAPTION)
        # The default font has no Chinese: such a caption is named by its number.
        caption = item.prompt.caption if item.prompt.caption.isascii() else f"prompt {item.prompt.number}"
        draw.text((2, top), caption, fill=(255, 255, 255))
        last = len(item.clip.frames) - 1
        for column in range(COLUMNS):
            frame = item.clip.frames[round(column * last / (COLUMNS - 1))]
            sheet.paste(Image.fromarray(frame), (column * width, top + _CAPTION))
    sheet.save(path, optimize=True)
