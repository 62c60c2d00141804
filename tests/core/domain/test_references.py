"""Which frames of a reference video the text encoder sees."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash.domain.references import MIN_FRAMES, sample_frames
from vflash_ports.errors import MediaError


def test_two_frames_a_second_are_paired():
    """Every twelfth frame of 24 a second; a pair's label is the mean of its two times."""
    sampled = sample_frames(48, what="clip")
    assert sampled.indices == (0, 12, 24, 36)
    assert sampled.pair_seconds == (0.25, 1.25)


def test_labels_round_halves_to_even():
    """A mean of 0.25 s is printed as 0.2, and so are all quarters below an even tenth."""
    assert [f"{seconds:.1f}" for seconds in sample_frames(96, what="clip").pair_seconds] == ["0.2", "1.2", "2.2", "3.2"]


def test_an_odd_last_frame_is_its_own_partner():
    """25 frames hold three samples: the third is paired with itself, at its own time."""
    sampled = sample_frames(25, what="clip")
    assert sampled.pair_seconds == (0.25, 1.0)
    assert len(sampled.pair_seconds) == (len(sampled.indices) + 1) // 2


@settings(deadline=None)
@given(st.integers(MIN_FRAMES, 362))
def test_sampling_properties(frame_count):
    """Indices stay inside the clip, rise by twelve, and each pair has one label inside the clip's time."""
    sampled = sample_frames(frame_count, what="clip")
    distinct = sorted(set(sampled.indices))
    assert distinct == list(range(0, frame_count, 12))
    assert len(sampled.pair_seconds) == (len(distinct) + 1) // 2
    assert list(sampled.pair_seconds) == sorted(set(sampled.pair_seconds))
    assert sampled.pair_seconds[-1] <= (frame_count - 1) / 24


@pytest.mark.parametrize("frame_count", [1, 4, 12])
def test_too_short_a_video_is_refused(frame_count):
    """Below 13 frames there is no second sample; the message names the clip, its length and the least."""
    with pytest.raises(MediaError, match=f"reference 2 has {frame_count} frames at 24 fps; .* at least 13"):
        sample_frames(frame_count, what="reference 2")
    assert sample_frames(13, what="reference 2").indices[:2] == (0, 12)
