"""Which motion a track is, by rules on its range, its net displacement and its turning."""

from __future__ import annotations

import math

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from vflash_adapters.judge.blobs import Floats
from vflash_adapters.judge.description import Motion
from vflash_adapters.judge.seen import Track

_STILL = 0.12
"""Less movement than this, in canvas sizes, is none."""


@frozen(kw_only=True, eq=False)
class MotionFacts:
    """`net_x`, `net_y`, `range_x`, `range_y` in canvas sizes; `growth` end radius over start radius; `turned` turns
    around the mean place; `contacts_s` when the object is at its lowest between two rises."""

    net_x: float
    net_y: float
    range_x: float
    range_y: float
    growth: float
    turned: float
    contacts_s: Floats


def motion_facts(track: Track, fps: float) -> MotionFacts:
    x, y, radius = (_median3(values) for values in (track.x, track.y, track.radius))
    head, tail = slice(0, max(1, len(x) // 12)), slice(-max(1, len(x) // 12), None)
    return MotionFacts(
        net_x=float(np.median(x[tail]) - np.median(x[head])),
        net_y=float(np.median(y[tail]) - np.median(y[head])),
        range_x=float(np.ptp(x)),
        range_y=float(np.ptp(y)),
        growth=float(np.median(radius[tail]) / max(float(np.median(radius[head])), 1e-6)),
        turned=_turns(x, y),
        contacts_s=_contacts(y) / np.float32(fps),
    )


def classify(facts: MotionFacts) -> Motion | None:
    """None where nothing in particular moves."""
    if facts.growth > 1.5 or facts.growth < 1 / 1.5:
        return Motion.GROW if facts.growth > 1 else Motion.SHRINK
    if abs(facts.turned) > 0.75 and facts.range_x > _STILL and facts.range_y > _STILL and _round(facts):
        return Motion.CIRCLE
    if len(facts.contacts_s) >= 2 and facts.range_y > _STILL:
        return Motion.BOUNCE
    if max(abs(facts.net_x), abs(facts.net_y)) < _STILL:
        return None
    if abs(facts.net_x) > abs(facts.net_y):
        return Motion.LEFT if facts.net_x < 0 else Motion.RIGHT
    return Motion.UP if facts.net_y < 0 else Motion.DOWN


def _round(facts: MotionFacts) -> bool:
    return 0.4 < facts.range_x / max(facts.range_y, 1e-6) < 2.5


def _turns(x: Floats, y: Floats) -> float:
    """Whole angle swept around the middle of the path, in turns; only where it is away from the middle."""
    across, down = x - (x.max() + x.min()) / 2, y - (y.max() + y.min()) / 2
    away = np.hypot(across, down)
    if float(away.max()) < _STILL / 2:
        return 0.0
    # A straight line passes through its middle and would sweep half a turn there.
    if float(away.min()) < 0.4 * float(away.max()):
        return 0.0
    angle = np.unwrap(np.arctan2(down, across))
    return float(angle[-1] - angle[0]) / math.tau


def _contacts(y: Floats) -> Floats:
    """Frame positions of the lowest points that lie between two clear rises, parabola-refined."""
    span = float(np.ptp(y))
    if span < _STILL:
        return np.zeros(0, np.float32)
    low = np.flatnonzero(y > y.max() - 0.35 * span)
    groups = np.split(low, np.flatnonzero(np.diff(low) > 2) + 1)
    found = []
    for group in groups:
        if group[0] == 0 or group[-1] == len(y) - 1:
            continue  # the fall or the rise is outside the clip
        found.append(_cusp(y, group))
    return np.array(found, np.float32)


def _cusp(y: Floats, group: NDArray[np.int64]) -> float:
    """Where the falling and the rising line meet: a bounce has a corner there, not a smooth extreme."""
    lowest = int(group[y[group].argmax()])
    before = np.arange(max(0, lowest - 4), lowest)
    after = np.arange(lowest + 1, min(len(y), lowest + 5))
    if len(before) < 3 or len(after) < 3:
        return float(lowest)
    down_slope, down_at = np.polyfit(before, y[before], 1)
    up_slope, up_at = np.polyfit(after, y[after], 1)
    if down_slope - up_slope < 1e-4:
        return float(lowest)
    return float(np.clip((up_at - down_at) / (down_slope - up_slope), lowest - 1.5, lowest + 1.5))


def _median3(values: Floats) -> Floats:
    if len(values) < 3:
        return values
    padded = np.concatenate([values[:1], values, values[-1:]])
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, 3), axis=1).astype(np.float32)
