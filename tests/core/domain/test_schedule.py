"""Steps are model evaluations; shifts are positive."""

from __future__ import annotations

import pytest

from vflash.domain.schedule import Schedule
from vflash_ports.errors import ContractError


@pytest.mark.parametrize("steps", [1, 4, 50, 1000])
def test_legal_steps(steps):
    """One evaluation is as legal as fifty, and shifts default to the released 12 and 3."""
    schedule = Schedule(evaluations=steps)
    assert (schedule.evaluations, schedule.video_shift, schedule.audio_shift) == (steps, 12.0, 3.0)


@pytest.mark.parametrize("steps", [0, -1, 1001])
def test_steps_out_of_range_are_refused_by_the_user_s_word(steps):
    """The user says steps, so the message does."""
    with pytest.raises(ContractError, match=f"steps must be between 1 and 1000, got {steps}"):
        Schedule(evaluations=steps)


@pytest.mark.parametrize("steps", [True, 4.0, "4", None])
def test_steps_are_never_converted(steps):
    """A bool, a float and a text are refused rather than read as a number."""
    with pytest.raises(ContractError, match="steps must be a whole number"):
        Schedule(evaluations=steps)


@pytest.mark.parametrize("shift", [0, -1.0, float("nan"), float("inf"), 1000, True, "12", None])
def test_shifts_are_positive_numbers(shift):
    """Neither modality takes a shift that is no positive finite number."""
    with pytest.raises(ContractError, match="flow shift must be a positive number"):
        Schedule(evaluations=4, video_shift=shift)
    with pytest.raises(ContractError, match="flow shift must be a positive number"):
        Schedule(evaluations=4, audio_shift=shift)
