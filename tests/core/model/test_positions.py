"""The packed layout as tensors, and the rotary angles made of it."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash.domain.model_facts import DenoiserFacts
from vflash.domain.packing import Keyframe, PackedRun, PictureBlock, SoundBlock, VideoBlock, pack
from vflash.model.positions import Role, index_rows, run_positions
from vflash.model.rotary import rotary_tables
from vflash_ports.attention import SegmentKind

CONDITIONS = [
    SoundBlock(latents=4),
    PictureBlock(height=4, width=2),
    VideoBlock(frames=7, height=2, width=4, sound_latents=3),
    Keyframe(last=True),
]
TAGS = torch.tensor([1, 1, 0, 0, 1])  # two text rows, a vision block of two, one text row


def layout(conditions=CONDITIONS):
    return pack(
        text_rows=5,
        conditions=conditions,
        latent_frames=7,
        latent_height=4,
        latent_width=6,
        audio_latents=11,
        patch=(1, 2, 2),
    )


axis = st.lists(st.floats(-50, 50), min_size=1, max_size=4).map(tuple)


@settings(deadline=None, max_examples=40)
@given(axis, axis, axis)
def test_positions_are_the_row_major_product(t, h, w):
    """Time outermost, width innermost, in float64."""
    positions = run_positions(PackedRun(kind=SegmentKind.TARGET_VIDEO, start=0, t=t, h=h, w=w))
    assert positions.dtype is torch.float64
    assert [tuple(row) for row in positions.tolist()] == list(itertools.product(t, h, w))


def test_every_row_has_one_role_and_the_slices_partition():
    """Vision rows in the text are video; conditions and targets have roles of their own; targets end the sequence."""
    packed = layout()
    index = index_rows(packed, TAGS)
    assert index.positions.shape == (packed.rows, 3)
    assert index.roles[:5].tolist() == [Role.TEXT, Role.TEXT, Role.VIDEO, Role.VIDEO, Role.TEXT]
    parts = [
        (slice(0, index.text_rows), None),
        *((rows, Role.CONDITION_VIDEO) for rows in index.condition_video),
        *((rows, Role.CONDITION_AUDIO) for rows in index.condition_audio),
        (index.target_audio, Role.AUDIO),
        (index.target_video, Role.VIDEO),
    ]
    seen = torch.zeros(packed.rows, dtype=torch.int64)
    for rows, role in parts:
        seen[rows] += 1
        if role is not None:
            assert (index.roles[rows] == role).all()
    assert (seen == 1).all()
    assert index.target_audio.stop == index.target_video.start
    assert index.target_video.stop == packed.rows
    # Two channels a sound, pictures, a video and a keyframe: in the order they were packed.
    assert len(index.condition_audio) == 4
    assert [rows.stop - rows.start for rows in index.condition_video] == [2, 14, 6]
    assert [rows.stop - rows.start for rows in index.condition_audio] == [4, 4, 3, 3]


def test_roles_know_their_modality():
    """Tags of the released model: 0 video, 1 text, 2 audio."""
    assert [role.tag for role in Role] == [0, 1, 2, 0, 2]


def test_a_text_request_has_no_condition_rows():
    """Then the prefix is the text alone."""
    index = index_rows(layout(conditions=[]), TAGS)
    assert index.condition_video == index.condition_audio == ()
    assert index.target_audio.start == 5


def test_rotary_angles_of_one_row_by_hand():
    """Positions in float32, frequencies theta^(-i/n) shared by t, h and w, the three laid side by side, then again."""
    facts = DenoiserFacts(num_attention_heads=1, attention_head_dim=16, rope_freq_dim=2, rope_theta=100.0)
    cos, sin = rotary_tables(torch.tensor([[7.0, -2.5, 3.0]], dtype=torch.float64), facts)
    angles = torch.tensor([7.0, 0.7, -2.5, -0.25, 3.0, 0.3]).repeat(2)
    assert cos.shape == sin.shape == (1, 12)
    assert cos.dtype is sin.dtype is torch.float32
    torch.testing.assert_close(cos[0], angles.cos())
    torch.testing.assert_close(sin[0], angles.sin())
