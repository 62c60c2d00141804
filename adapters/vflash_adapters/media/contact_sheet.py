"""A contact sheet: frames over time with their times, and the waveform under them, as one PNG."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vflash_adapters.media.scratch import check_target, publish, scratch_beside
from vflash_ports.errors import DeliveryError

if TYPE_CHECKING:
    from PIL import Image

COLUMNS, ROWS = 6, 2
THUMBNAIL_WIDTH = 240
LABEL_HEIGHT = 18
WAVE_HEIGHT = 96
GAP = 4
PAPER, INK, WAVE, CLIPPED = (24, 24, 24), (230, 230, 230), (110, 170, 240), (240, 80, 80)


def sheet_frames(frame_count: int) -> list[int]:
    """The frames shown: evenly spread, first and last included."""
    return sorted({round(index) for index in np.linspace(0, max(frame_count - 1, 0), COLUMNS * ROWS)})


def thumbnail(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8 RGB [H, W, 3] -> as wide as a column, the same shape."""
    from PIL import Image

    height = max(1, round(frame.shape[0] * THUMBNAIL_WIDTH / frame.shape[1]))
    return np.asarray(Image.fromarray(frame).resize((THUMBNAIL_WIDTH, height), Image.Resampling.BOX))


def write_contact_sheet(
    path: Path, thumbnails: dict[int, NDArray[np.uint8]], *, fps: float, waveform: NDArray[np.float32]
) -> None:
    """`thumbnails` by frame index; `waveform` float32 [channels, n]. Never over an existing file."""
    from PIL import Image, ImageDraw

    check_target(path, ".png")
    cell_height = LABEL_HEIGHT + max(thumb.shape[0] for thumb in thumbnails.values()) + GAP
    columns = min(COLUMNS, len(thumbnails))
    rows = -(-len(thumbnails) // columns)
    width = GAP + columns * (THUMBNAIL_WIDTH + GAP)
    sheet = Image.new("RGB", (width, rows * cell_height + WAVE_HEIGHT + 2 * GAP), PAPER)
    pen = ImageDraw.Draw(sheet)
    for place, (index, thumb) in enumerate(sorted(thumbnails.items())):
        left = GAP + place % columns * (THUMBNAIL_WIDTH + GAP)
        top = place // columns * cell_height
        pen.text((left, top + 2), f"{index / fps:.2f} s  #{index}", fill=INK)
        sheet.paste(Image.fromarray(thumb), (left, top + LABEL_HEIGHT))
    _draw_wave(sheet, waveform, top=rows * cell_height + GAP)
    with scratch_beside(path) as scratch:
        try:
            sheet.save(scratch / "sheet.png")
        except OSError as error:
            raise DeliveryError(
                f"{path}: could not be written ({error}); free space there, then run it again"
            ) from error
        publish(scratch / "sheet.png", path)


def _draw_wave(sheet: Image.Image, waveform: NDArray[np.float32], *, top: int) -> None:
    """One column of pixels for each slice of time: its lowest and highest sample; red where it is clipped."""
    from PIL import ImageDraw

    pen = ImageDraw.Draw(sheet)
    middle, reach = top + WAVE_HEIGHT // 2, WAVE_HEIGHT // 2 - 1
    pen.line([(GAP, middle), (sheet.width - GAP, middle)], fill=INK)
    if waveform.shape[1] == 0:
        return
    edges = np.linspace(0, waveform.shape[1], sheet.width - 2 * GAP + 1).astype(int)
    for column, (start, stop) in enumerate(pairwise(edges)):
        part = waveform[:, start : max(stop, start + 1)]
        low, high = float(part.min()), float(part.max())
        colour = CLIPPED if max(-low, high) >= 1 else WAVE
        ends = [(GAP + column, middle - reach * min(high, 1)), (GAP + column, middle - reach * max(low, -1))]
        pen.line(ends, fill=colour)
