"""Everything of one palette colour in a clip, over time: the pieces that `see` takes for objects."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from vflash_adapters.judge.description import Colour
from vflash_adapters.judge.palette import OBJECT_RGB

Floats = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]

_MIN_SHARE = 0.04
_MIN_PRESENCE = 0.5
_COLOURS = tuple(OBJECT_RGB)
_RGB = np.array([OBJECT_RGB[c] for c in _COLOURS], np.float32)


def find_blobs(pixels: Floats, foreground: Mask) -> list[Blob]:
    """One blob for each palette colour that is there often enough; edges are left out, since they mix colours."""
    inner = foreground.copy()
    inner[:, 1:] &= foreground[:, :-1]
    inner[:, :-1] &= foreground[:, 1:]
    inner[:, :, 1:] &= foreground[:, :, :-1]
    inner[:, :, :-1] &= foreground[:, :, 1:]
    frame, row, column = np.nonzero(inner)
    if len(frame) == 0:
        return []
    nearest = _nearest_colour(pixels[frame, row, column])
    counts = np.bincount(nearest, minlength=len(_COLOURS))
    blobs = [
        _blob(int(i), frame[nearest == i], row[nearest == i], column[nearest == i], inner.shape)
        for i in np.flatnonzero(counts > _MIN_SHARE * counts.max())
    ]
    return _whole([blob for blob in blobs if blob.present.mean() > _MIN_PRESENCE])


def _whole(blobs: list[Blob]) -> list[Blob]:
    """Without those that are the edge of a larger one."""
    kept: list[Blob] = []
    for blob in sorted(blobs, key=lambda b: -b.pixels):
        if not any(blob.part_of(larger) for larger in kept):
            kept.append(blob)
    return kept


def _nearest_colour(rgb: Floats) -> NDArray[np.int64]:
    """Index into the palette, whatever the shading: each colour may be up to a fifth lighter or darker."""
    scale = np.clip((rgb @ _RGB.T) / (_RGB * _RGB).sum(1), 0.8, 1.2)
    distance = np.linalg.norm(rgb[:, None] - scale[:, :, None] * _RGB[None], axis=-1)
    return distance.argmin(1)


def _blob(
    index: int, frame: NDArray[np.int64], row: NDArray[np.int64], column: NDArray[np.int64], shape: tuple[int, ...]
) -> Blob:
    count, height, width = shape
    area = np.bincount(frame, minlength=count).astype(np.float32)
    safe = np.maximum(area, 1.0)
    x = np.bincount(frame, weights=column + 0.5, minlength=count) / safe / width
    y = np.bincount(frame, weights=row + 0.5, minlength=count) / safe / height
    return Blob(
        colour=_COLOURS[index],
        pixels=len(frame),
        x=x.astype(np.float32),
        y=y.astype(np.float32),
        area=area / min(height, width) ** 2,
        present=area >= 4,
    )


@frozen(kw_only=True, eq=False)
class Blob:
    """Everything of one palette colour: centre [F] in widths and heights, area [F] in square short edges."""

    colour: Colour
    pixels: int
    x: Floats
    y: Floats
    area: Floats
    present: Mask

    @property
    def liveliness(self) -> float:
        """How much it moves or resizes; the clip's subject moves more than anything else."""
        if self.present.sum() < 3:
            return 0.0
        x, y = self.x[self.present], self.y[self.present]
        radius = np.sqrt(self.area[self.present])
        return float(np.ptp(_smooth(x)) + np.ptp(_smooth(y)) + 2.0 * np.ptp(_smooth(radius)))

    @property
    def at_rest(self) -> bool:
        """In a corner, and half of the time within a fiftieth of its usual place."""
        x, y = median(self.x, self.present), median(self.y, self.present)
        near = (np.abs(self.x - x) < 0.02) & (np.abs(self.y - y) < 0.02)
        return bool((near & self.present).mean() > 0.5) and abs(x - 0.5) > 0.2 and abs(y - 0.5) > 0.2

    @property
    def radius(self) -> float:
        return math.sqrt(median(self.area, self.present) / math.pi)

    def part_of(self, other: Blob) -> bool:
        """Blurred edges take colours of their own, and move with the object."""
        both = self.present & other.present
        apart = np.hypot(self.x - other.x, self.y - other.y)
        return bool(both.any()) and float((apart < np.sqrt(other.area / math.pi) + 0.02)[both].mean()) > 0.7


def median(values: Floats, present: Mask) -> float:
    return float(np.median(values[present]))


def _smooth(values: Floats) -> Floats:
    """Running median of five: a frame in which something was misread does not make a still object lively."""
    if len(values) < 5:
        return values
    windows = np.lib.stride_tricks.sliding_window_view(values, 5)
    return np.median(windows, axis=1).astype(np.float32)
