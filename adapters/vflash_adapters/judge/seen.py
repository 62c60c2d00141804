"""What a clip shows, measured: background, the moving object over time, the object at rest. NumPy, no model."""

from __future__ import annotations

import math

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from vflash_adapters.judge.blobs import Blob, Floats, Mask, find_blobs, median
from vflash_adapters.judge.description import Background, Colour, Corner, SecondObject, Shape
from vflash_adapters.judge.outline_match import best_shape
from vflash_adapters.judge.palette import BACKGROUND_RGB, OBJECT_RGB

FOREGROUND_DISTANCE = 45.0
"""RGB distance from the background; the closest object and background of the palette are 116 apart."""
_SHAPE_FRAMES = 12


@frozen(kw_only=True, eq=False)
class Track:
    """The moving object: `x`, `y` [F] centre in widths and heights, `radius` [F] of a disc of its area in short
    edges, `visible` [F] bool. Values are held where it is not visible."""

    x: Floats
    y: Floats
    radius: Floats
    visible: Mask


@frozen(kw_only=True, eq=False)
class Seen:
    """`shape_scores`: overlap with each shape, 0 to 1. `main` fields are None where nothing is in the picture."""

    background: Background
    colour: Colour | None
    shape: Shape | None
    shape_scores: dict[Shape, float]
    track: Track | None
    second: SecondObject | None


def see(frames: NDArray[np.uint8]) -> Seen:
    """frames uint8 RGB [F, H, W, 3]."""
    pixels = frames.astype(np.float32)
    ground = _border_median(pixels)
    background = min(Background, key=lambda b: float(np.abs(ground - BACKGROUND_RGB[b]).sum()))
    foreground = np.linalg.norm(pixels - ground, axis=-1) > FOREGROUND_DISTANCE
    blobs = find_blobs(pixels, foreground)
    if not blobs:
        return Seen(background=background, colour=None, shape=None, shape_scores={}, track=None, second=None)
    main = max(blobs, key=lambda b: b.liveliness)
    still = max((b for b in blobs if b is not main and b.at_rest), key=lambda b: b.pixels, default=None)
    cover = _cover(pixels, ground, foreground, main.colour)
    if still is not None:
        cover = cover * ~_ground_of(still, main, pixels)
    track = _track(cover)
    shape, scores = best_shape(cover, track.x, track.y, track.radius, _clear_frames(track, still))
    second = None if still is None else _second(still, _cover(pixels, ground, foreground, still.colour), main)
    return Seen(background=background, colour=main.colour, shape=shape, shape_scores=scores, track=track, second=second)


def _border_median(pixels: Floats) -> Floats:
    edges = (pixels[:, :2], pixels[:, -2:], pixels[:, :, :2], pixels[:, :, -2:])
    return np.median(np.concatenate([e.reshape(-1, 3) for e in edges]), axis=0).astype(np.float32)


def _cover(pixels: Floats, ground: Floats, foreground: Mask, colour: Colour) -> Floats:
    """How much of each pixel is the object, [F, H, W]: its place on the line from the background to the colour."""
    axis = np.array(OBJECT_RGB[colour], np.float32) - ground
    cover = np.clip((pixels - ground) @ axis / float(axis @ axis), 0.0, 1.0)
    return np.where(foreground, cover, 0.0).astype(np.float32)


def _ground_of(still: Blob, main: Blob, pixels: Floats) -> Mask:
    """Pixels that belong to the object at rest: around it while the other is away, else by colour."""
    height, width = pixels.shape[1:3]
    short = min(height, width)
    column = (np.arange(width) + 0.5)[None, :] - median(still.x, still.present) * width
    row = (np.arange(height) + 0.5)[:, None] - median(still.y, still.present) * height
    around = np.hypot(row, column) < 2.4 * still.radius * short + 3.0
    own = np.linalg.norm(pixels - np.array(OBJECT_RGB[still.colour], np.float32), axis=-1) < np.linalg.norm(
        pixels - np.array(OBJECT_RGB[main.colour], np.float32), axis=-1
    )
    away = _apart(still, main, (height, width)) > 2.4 * still.radius + 1.7 * np.sqrt(main.area / math.pi)
    return around[None] & (own | away[:, None, None])


def _apart(still: Blob, main: Blob, size: tuple[int, int]) -> Floats:
    """Distance between the two [F], in short edges."""
    height, width = size
    dx = (main.x - median(still.x, still.present)) * width
    dy = (main.y - median(still.y, still.present)) * height
    return (np.hypot(dx, dy) / min(height, width)).astype(np.float32)


def _track(cover: Floats) -> Track:
    height, width = cover.shape[1:]
    area = cover.sum((1, 2))
    visible = area > 6.0
    safe = np.maximum(area, 1e-6)
    x = (cover.sum(1) @ (np.arange(width) + 0.5)) / safe / width
    y = (cover.sum(2) @ (np.arange(height) + 0.5)) / safe / height
    radius = np.sqrt(area / math.pi) / min(height, width)
    held = _last_visible(visible)
    return Track(
        x=x[held].astype(np.float32),
        y=y[held].astype(np.float32),
        radius=radius[held].astype(np.float32),
        visible=visible,
    )


def _last_visible(visible: Mask) -> NDArray[np.int64]:
    """For each frame the latest one up to it with the object in view; before the first, the first."""
    index = np.where(visible, np.arange(len(visible)), -1)
    index = np.maximum.accumulate(index)
    return np.where(index < 0, int(visible.argmax()), index)


def _clear_frames(track: Track, still: Blob | None) -> NDArray[np.int64]:
    """Frames in which the outline is whole: visible, and not over the object at rest."""
    clear = track.visible.copy()
    if still is not None:
        x, y = median(still.x, still.present), median(still.y, still.present)
        clear &= np.hypot(track.x - x, track.y - y) > 2.5 * (track.radius + still.radius)
    frames = np.flatnonzero(clear)
    if len(frames) == 0:
        frames = np.flatnonzero(track.visible)
    return (
        frames[np.linspace(0, len(frames) - 1, min(_SHAPE_FRAMES, len(frames))).astype(int)] if len(frames) else frames
    )


def _second(still: Blob, cover: Floats, main: Blob) -> SecondObject:
    count, height, width = cover.shape
    x, y = median(still.x, still.present), median(still.y, still.present)
    column = (np.arange(width) + 0.5)[None, :] - x * width
    row = (np.arange(height) + 0.5)[:, None] - y * height
    around = np.hypot(row, column) < 2.4 * still.radius * min(height, width) + 3.0
    alone = _apart(still, main, (height, width)) > 2.6 * still.radius + 1.7 * np.sqrt(main.area / math.pi)
    frames = np.flatnonzero(alone) if alone.any() else np.arange(count)
    mean = (cover[frames] * around).mean(0, keepdims=True)
    track = _track(mean.astype(np.float32))
    shape, _ = best_shape(mean.astype(np.float32), track.x, track.y, track.radius, np.zeros(1, np.int64))
    corner = (
        (Corner.TOP_LEFT if x < 0.5 else Corner.TOP_RIGHT)
        if y < 0.5
        else (Corner.BOTTOM_LEFT if x < 0.5 else Corner.BOTTOM_RIGHT)
    )
    assert shape is not None
    return SecondObject(shape=shape, colour=still.colour, corner=corner)
