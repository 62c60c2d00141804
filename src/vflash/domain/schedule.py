"""Schedules: steps are model evaluations, two shifted grids in one loop."""

from __future__ import annotations

from attrs import field, frozen

from vflash.domain.fields import shown, whole_number
from vflash_ports.errors import ContractError

MAX_EVALUATIONS = 1000
VIDEO_SHIFT = 12.0
AUDIO_SHIFT = 3.0
CONDITION_TIMESTEP = 0.999
"""Visual conditioning rows are held just short of clean."""
CLEAN_TIMESTEP = 1.0
"""Reference sound is never noised."""


def flow_shift(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1000:
        raise ContractError(f"a flow shift must be a positive number below 1000, got {shown(value)}")
    return float(value)


@frozen(kw_only=True)
class Schedule:
    """`evaluations` forwards over sigma grids of evaluations + 1 points each; t = 1 - sigma, t = 1 is clean."""

    evaluations: int = field(validator=whole_number(1, MAX_EVALUATIONS, name="steps"))
    video_shift: float = field(default=VIDEO_SHIFT, converter=flow_shift)
    audio_shift: float = field(default=AUDIO_SHIFT, converter=flow_shift)
