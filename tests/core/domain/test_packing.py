"""The packed sequence and its rotary clock, against NumPy's own arithmetic and by invariants over random requests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash.domain.packing import (
    Keyframe,
    PackedLayout,
    PictureBlock,
    SoundBlock,
    VideoBlock,
    latent_span_pairwise,
    latent_spans,
    latent_times,
    pack,
    spatial_axis,
)
from vflash_ports.attention import SegmentKind
from vflash_ports.errors import ContractError

PATCH = (1, 2, 2)
TARGET = {"latent_frames": 37, "latent_height": 4, "latent_width": 6, "audio_latents": 207, "patch": PATCH}
TEXT, CONDITION_VIDEO, CONDITION_AUDIO, TARGET_AUDIO, TARGET_VIDEO = SegmentKind

even = st.integers(1, 6).map(lambda n: 2 * n)
blocks = st.one_of(
    st.builds(Keyframe, last=st.booleans()),
    st.builds(PictureBlock, height=even, width=even),
    st.builds(SoundBlock, latents=st.integers(1, 300)),
    st.builds(VideoBlock, frames=st.integers(2, 40), height=even, width=even, sound_latents=st.integers(0, 300)),
)


def lay(conditions=(), text_rows=9, **changes) -> PackedLayout:
    return pack(text_rows=text_rows, conditions=conditions, **{**TARGET, **changes})


def runs(layout: PackedLayout, kind: SegmentKind):
    return [run for run in layout.runs if run.kind is kind]


def clock_of(layout: PackedLayout) -> float:
    """Where the target's time starts."""
    return runs(layout, TARGET_VIDEO)[0].t[0]


def spans(frames: int) -> np.ndarray:
    return np.array([5 / 3 * (1, 4, 4, 4, 4)[i % 5] for i in range(frames)])


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.lists(blocks, max_size=6), even, even, st.integers(2, 40), st.integers(1, 300))
def test_runs_partition_the_rows_in_packed_order(text_rows, conditions, height, width, frames, audio):
    """Runs tile 0..S-1 without gap or overlap: text, conditions, both audio channels, video last."""
    sizes = {"latent_height": height, "latent_width": width, "latent_frames": frames, "audio_latents": audio}
    layout = lay(conditions, text_rows, **sizes)
    starts = [run.start for run in layout.runs]
    ends = [run.start + run.rows for run in layout.runs]
    assert starts == [0, *ends[:-1]]
    assert layout.rows == ends[-1] == sum(layout.rows_of(kind) for kind in SegmentKind)
    kinds = [run.kind for run in layout.runs]
    assert kinds[0] is TEXT
    assert kinds[-3:] == [TARGET_AUDIO, TARGET_AUDIO, TARGET_VIDEO]
    assert set(kinds[1:-3]) <= {CONDITION_VIDEO, CONDITION_AUDIO}
    assert layout.rows_of(TARGET_AUDIO) == 2 * audio
    assert layout.rows_of(TARGET_VIDEO) == frames * (height // 2) * (width // 2)
    assert layout.rows_of(TEXT) == text_rows


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.lists(blocks, max_size=6))
def test_the_clock_moves_by_what_each_condition_lasts(text_rows, conditions):
    """Keyframes 0, a picture 1, a sound its latents, a video the longer of its sound and its frames."""
    expected = float(text_rows)
    for block in conditions:
        if isinstance(block, PictureBlock):
            expected += 1
        elif isinstance(block, SoundBlock):
            expected += block.latents
        elif isinstance(block, VideoBlock):
            running = 0.0
            for span in spans(block.frames):
                running += float(span)
            expected += max(block.sound_latents, running)
    layout = lay(conditions, text_rows)
    assert clock_of(layout) == expected
    left, right = runs(layout, TARGET_AUDIO)
    assert left.t == right.t == tuple(expected + k for k in range(207))


@settings(deadline=None, max_examples=60)
@given(st.lists(blocks, max_size=6))
def test_conditions_keep_their_order_and_size(conditions):
    """Each condition gives its own runs in the order given; a soundtrack comes right before its pictures."""
    expected: list[tuple[SegmentKind, int]] = []
    for block in conditions:
        if isinstance(block, Keyframe):
            expected.append((CONDITION_VIDEO, 2 * 3))
        elif isinstance(block, PictureBlock):
            expected.append((CONDITION_VIDEO, block.height * block.width // 4))
        elif isinstance(block, SoundBlock):
            expected += [(CONDITION_AUDIO, block.latents)] * 2
        else:
            expected += [(CONDITION_AUDIO, block.sound_latents)] * (2 if block.sound_latents else 0)
            expected.append((CONDITION_VIDEO, block.frames * block.height * block.width // 4))
    assert [(run.kind, run.rows) for run in lay(conditions).runs[1:-3]] == expected


@pytest.mark.parametrize("frames", [1, 2, 7, 8, 9, 15, 16, 17, 37, 47, 107, 127, 128, 129, 136, 137, 200, 257, 1000])
def test_the_last_keyframe_is_anchored_by_the_pairwise_sum(frames):
    """Bit-equal to NumPy's float64 sum, whose order differs from a running sum."""
    assert latent_span_pairwise(frames) == float(spans(frames).sum())


def test_pairwise_and_running_sums_differ_where_it_matters():
    """At 37 latents the two orders give different floats, so using one for the other would show."""
    assert latent_span_pairwise(37) != sum(latent_spans(37))
    last = lay([Keyframe(last=True)])
    assert runs(last, CONDITION_VIDEO)[0].t == (9 + latent_span_pairwise(37) - 5 / 3,)
    video = lay([VideoBlock(frames=37, height=4, width=4)])
    assert clock_of(video) == 9 + sum(latent_spans(37))


def test_a_first_keyframe_stands_at_the_clock():
    """First and last keyframes share the target's spatial grid and do not move its clock."""
    layout = lay([Keyframe(last=False), Keyframe(last=True)])
    first, last = runs(layout, CONDITION_VIDEO)
    target = runs(layout, TARGET_VIDEO)[0]
    assert first.t == (9.0,) == (target.t[0],)
    assert (first.h, first.w) == (last.h, last.w) == (target.h, target.w)
    # One latent frame of a single picture lasts 5/3 and ends where the target ends.
    assert last.t[0] + 5 / 3 == pytest.approx(target.t[-1] + latent_spans(37)[-1])


def test_latent_times_start_at_the_clock_and_add_up():
    """Frame i starts after the spans before it: 1, 4, 4, 4, 4 frames of 5/3, again and again."""
    times = latent_times(12, 100.0)
    assert times[0] == 100.0
    assert np.allclose(np.diff(times), spans(12)[:-1])
    assert len(times) == 12
    assert latent_spans(6) == (5 / 3, 20 / 3, 20 / 3, 20 / 3, 20 / 3, 5 / 3)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 80).map(lambda n: 2 * n), st.integers(1, 80).map(lambda n: 2 * n))
def test_spatial_axes_are_numpy_linspace(height, width):
    """Bit-equal to linspace over d / sqrt(h * w), centred, right end excluded, times 32."""
    root = math.sqrt(height * width)
    for dim in (height, width):
        ratio = dim / root
        left = (1.0 - ratio) / 2.0
        expected = np.linspace(left, left + ratio, dim // 2, endpoint=False) * 32
        assert spatial_axis(dim, 2, root) == tuple(expected.tolist())


def test_height_and_width_are_not_swapped():
    """A wide canvas has more and wider-spread columns than rows."""
    target = runs(lay(latent_height=4, latent_width=12), TARGET_VIDEO)[0]
    assert (len(target.h), len(target.w)) == (2, 6)
    assert max(target.w) - min(target.w) > max(target.h) - min(target.h)


def test_sound_sits_on_the_edges_of_a_grid():
    """Left at the first width coordinate, right at the last, height 0: the target's grid, or the video's own."""
    layout = lay([SoundBlock(latents=5), VideoBlock(frames=7, height=8, width=4, sound_latents=6)])
    target, video = runs(layout, TARGET_VIDEO)[0], runs(layout, CONDITION_VIDEO)[0]
    alone, soundtrack = runs(layout, CONDITION_AUDIO)[:2], runs(layout, CONDITION_AUDIO)[2:]
    for pair, grid in ((alone, target), (soundtrack, video), (runs(layout, TARGET_AUDIO), target)):
        assert [run.w for run in pair] == [(grid.w[0],), (grid.w[-1],)]
        assert [run.h for run in pair] == [(0.0,), (0.0,)]
        assert pair[0].t == pair[1].t
    assert (target.w[0], target.w[-1]) != (video.w[0], video.w[-1])
    assert soundtrack[0].t[0] == video.t[0] == 9 + 5


def test_segments_carry_the_grid_of_visual_rows_only():
    """Attention backends see (T, H, W) in tokens for pictures and videos, nothing for text and sound."""
    layout = lay([PictureBlock(height=8, width=4), SoundBlock(latents=3)])
    grids = {run.segment().kind: run.segment().grid for run in layout.runs}
    assert grids == {
        TEXT: None,
        CONDITION_VIDEO: (1, 4, 2),
        CONDITION_AUDIO: None,
        TARGET_AUDIO: None,
        TARGET_VIDEO: (37, 2, 3),
    }


def test_a_prompt_without_rows_is_refused():
    """The released pipeline crashes on zero text rows."""
    with pytest.raises(ContractError, match="at least one token"):
        lay(text_rows=0)


@pytest.mark.parametrize("size", [{"latent_height": 5}, {"latent_width": 7}])
def test_latents_that_are_not_whole_patches_are_refused(size):
    """No row is dropped silently."""
    with pytest.raises(ContractError, match="not whole patches of 2x2"):
        lay(**size)
    with pytest.raises(ContractError, match="not whole patches"):
        lay([PictureBlock(height=3, width=4)])
