"""Which shape an object has: its picture, brought to unit size, against each shape's own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vflash_adapters.judge.blobs import Floats
from vflash_adapters.judge.description import Shape
from vflash_adapters.judge.shapes import outlines, signed_distance

_GRID = 40
_REACH = 1.8
"""The picture spans +-1.8 radii: all of every shape."""


def best_shape(
    cover: Floats, x: Floats, y: Floats, radius: Floats, frames: NDArray[np.int64]
) -> tuple[Shape | None, dict[Shape, float]]:
    """cover [F, H, W]; centres in widths and heights, radius in short edges [F]. The mean overlap over `frames`:
    sum of minima over sum of maxima, 1 for equal pictures."""
    if len(frames) == 0:
        return None, {}
    totals = dict.fromkeys(Shape, 0.0)
    _, height, width = cover.shape
    short = min(height, width)
    for frame in frames:
        size = max(float(radius[frame]) * short, 1.0)
        patch = _sample(cover[frame], float(x[frame]) * width, float(y[frame]) * height, size)
        for shape, template in _templates(size).items():
            totals[shape] += float(np.minimum(patch, template).sum() / np.maximum(patch, template).sum())
    scores = {shape: total / len(frames) for shape, total in totals.items()}
    return max(scores, key=lambda shape: scores[shape]), scores


def _sample(picture: Floats, x: float, y: float, size: float) -> Floats:
    """Bilinear, [GRID, GRID]; outside the picture is empty."""
    steps = np.linspace(-_REACH, _REACH, _GRID, dtype=np.float32) * size
    padded = np.pad(picture, 1)
    columns = np.clip(x + steps + 0.5, 0.0, padded.shape[1] - 1.001)
    rows = np.clip(y + steps + 0.5, 0.0, padded.shape[0] - 1.001)
    left, top = columns.astype(int), rows.astype(int)
    right, down = columns - left, (rows - top)[:, None]
    upper = padded[np.ix_(top, left)] * (1 - right) + padded[np.ix_(top, left + 1)] * right
    lower = padded[np.ix_(top + 1, left)] * (1 - right) + padded[np.ix_(top + 1, left + 1)] * right
    return (upper * (1 - down) + lower * down).astype(np.float32)


def _templates(size: float) -> dict[Shape, Floats]:
    """Each shape with a centroid at 0, its edge one pixel of the clip soft."""
    import torch

    steps = torch.linspace(-_REACH, _REACH, _GRID)
    rows, columns = torch.meshgrid(steps, steps, indexing="ij")
    distance = signed_distance(torch.tensor(outlines(tuple(Shape)))[:, None, None], columns, rows)
    covers = (0.5 - distance * size / 1.5).clamp(0, 1).numpy()
    return {shape: covers[index] for index, shape in enumerate(Shape)}
