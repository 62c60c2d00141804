"""The 24 fps clock of references: which slots each source frame is held for. Plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

SlotOf = Callable[[int, Fraction | None], int]


def frame_clock(times_s: Sequence[Fraction] | None, rate: Fraction | None, fps: int) -> SlotOf | None:
    """How source frames map to slots of the `fps` clock: a function of (index, time in seconds) -> first slot.

    A steady source (every frame within half a frame of `rate`'s clock, or one without timestamps) goes by index,
    floor(index * fps / rate + 0.5); any other by its timestamps, floor((time - first) * fps + 0.5). A frame is held
    until the slot of the next one. None: there is neither a rate nor timestamps to go by.
    """
    steady = rate is not None and rate > 0 and (times_s is None or _steady(times_s, rate))
    if steady and rate is not None:
        scale = fps / float(rate)
        return lambda index, _time: math.floor(index * scale + 0.5)
    if not times_s:
        return None
    first = min(times_s)
    return lambda _index, time: 0 if time is None else math.floor((time - first) * fps + Fraction(1, 2))


def _steady(times_s: Sequence[Fraction], rate: Fraction) -> bool:
    ordered = sorted(times_s)
    tolerance = Fraction(1, 2) / rate
    return all(abs(time - ordered[0] - index / rate) < tolerance for index, time in enumerate(ordered))
