"""Seconds, frames, latents and samples."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash.domain.duration import audio_latents, clip_length, latent_frames, snap_down, snap_up
from vflash_ports.errors import ContractError

CODEC = {"clip_frames": 17, "clip_latents": 5}
# seconds: modelled frames, delivered frames, latent frames, audio rows of both channels
TABLE = {
    5: (124, 120, 37, 414),
    6: (158, 144, 47, 526),
    7: (175, 168, 52, 584),
    8: (192, 192, 57, 640),
    9: (226, 216, 67, 754),
    10: (243, 240, 72, 810),
    11: (277, 264, 82, 924),
    12: (294, 288, 87, 980),
    13: (328, 312, 97, 1094),
    14: (345, 336, 102, 1150),
    15: (362, 360, 107, 1206),
}


@pytest.mark.parametrize("seconds", sorted(TABLE))
def test_every_legal_duration_has_the_model_s_own_counts(seconds):
    """5 to 15 s: 17n + 5 frames are modelled, 24 a second delivered, 5n + 2 latents, 40 audio latents a second."""
    length = clip_length(seconds, **CODEC)
    counts = (length.model_frames, length.delivered_frames, length.latent_frames, 2 * length.audio_latents)
    assert counts == TABLE[seconds]


@settings(deadline=None)
@given(st.integers(1, 5000))
def test_snapping_up_is_the_smallest_whole_clip(frames):
    """The result is 17n + 5, covers what was asked, and one clip less would not."""
    snapped = snap_up(frames, **CODEC)
    assert snapped % 17 == 5
    assert snapped >= frames
    assert snapped == 5 or snapped - 17 < frames


@settings(deadline=None)
@given(st.integers(22, 5000))
def test_snapping_down_is_the_largest_whole_clip(frames):
    """The result is 17n + 5, within what is there, and one clip more would not be."""
    snapped = snap_down(frames, **CODEC)
    assert snapped % 17 == 5
    assert snapped <= frames < snapped + 17


@pytest.mark.parametrize(("given_frames", "kept"), [(13, 22), (21, 22), (22, 22), (38, 22), (39, 39), (48, 39)])
def test_short_reference_videos_are_not_cut_to_nothing(given_frames, kept):
    """Below 22 frames all are kept (a slice of 22 keeps them); 48 frames are cut to 39."""
    assert snap_down(given_frames, **CODEC) == kept


@settings(deadline=None)
@given(st.integers(0, 300))
def test_each_clip_of_seventeen_frames_has_five_latents(clips):
    """17n + 5 frames become 5n + 2 latents."""
    assert latent_frames(17 * clips + 5, **CODEC) == 5 * clips + 2


@pytest.mark.parametrize("frames", [1, 17, 120, 123, 125])
def test_frames_between_clips_have_no_latent_count(frames):
    """Only 17n + 5 is a clip."""
    with pytest.raises(ContractError, match=f"17n \\+ 5, got {frames}"):
        latent_frames(frames, **CODEC)


@pytest.mark.parametrize("frames", [0, -3])
def test_no_frames_are_no_clip(frames):
    """Zero frames are refused, never rounded up to a clip."""
    with pytest.raises(ContractError, match="at least one frame"):
        snap_up(frames, **CODEC)


@settings(deadline=None)
@given(st.integers(1, 20_000))
def test_audio_latents_are_forty_a_second(frames):
    """The whole number nearest to frames / 24 * 40 = frames * 5 / 3; thirds never tie."""
    assert abs(3 * audio_latents(frames) - 5 * frames) <= 1


@settings(deadline=None)
@given(st.integers(5, 15))
def test_modelled_length_covers_the_delivered_one(seconds):
    """What is delivered is never longer than what the model makes, in frames and in samples."""
    length = clip_length(seconds, **CODEC)
    assert length.delivered_frames == 24 * seconds <= length.model_frames
    assert length.audio_latents * 800 >= math.ceil(seconds * 32_000)
