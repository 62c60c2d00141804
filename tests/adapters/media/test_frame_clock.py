"""Source frames land on the 24 fps slots that the released rule gives, and in time when the rate varies."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from vflash_adapters.media.frame_clock import frame_clock

RATES = [Fraction(24000, 1001), Fraction(25), Fraction(30000, 1001), Fraction(30), Fraction(60), Fraction(12)]


@settings(deadline=None, max_examples=60)
@given(rate=st.sampled_from(RATES), count=st.integers(1, 400), tick_hz=st.sampled_from([1000, 12288, 90000]))
def test_a_steady_source_goes_by_index_whatever_its_time_base(rate: Fraction, count: int, tick_hz: int) -> None:
    """Timestamps rounded to coarse ticks change no slot: floor(i * 24 / rate + 0.5) decides."""
    times = [Fraction(round(index / rate * tick_hz), tick_hz) for index in range(count)]
    slot_of = frame_clock(times, rate, 24)
    assert slot_of is not None
    assert [slot_of(index, times[index]) for index in range(count)] == [
        math.floor(index * (24 / float(rate)) + 0.5) for index in range(count)
    ]


def test_a_variable_source_goes_by_its_timestamps() -> None:
    """Half a second at 10 fps, then 60 fps: each frame starts in the slot nearest its own time."""
    times = [Fraction(k, 10) for k in range(5)] + [Fraction(1, 2) + Fraction(k, 60) for k in range(30)]
    slot_of = frame_clock(times, Fraction(35), 24)
    assert slot_of is not None
    assert [slot_of(index, time) for index, time in enumerate(times)] == [
        math.floor(time * 24 + Fraction(1, 2)) for time in times
    ]


def test_order_and_offset_of_timestamps_do_not_matter() -> None:
    """Packets come in decoding order and a stream may start anywhere: both leave the clock unchanged."""
    times = [Fraction(7) + Fraction(k, 30) for k in (0, 3, 1, 2, 6, 4, 5)]
    slot_of = frame_clock(times, Fraction(30), 24)
    assert slot_of is not None
    assert [slot_of(k, None) for k in range(7)] == [0, 1, 2, 2, 3, 4, 5]


def test_without_rate_and_timestamps_there_is_no_clock() -> None:
    """Nothing is guessed."""
    assert frame_clock(None, None, 24) is None
    assert frame_clock([], None, 24) is None
    assert frame_clock(None, Fraction(0), 24) is None
