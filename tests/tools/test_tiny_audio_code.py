"""The audio code: what it says is all there is to hear."""

from __future__ import annotations

import torch

from tiny_h3.audio_code import BINS, SWITCHES, audio_code
from tiny_h3.codecs import audio_scale
from tiny_h3.scenes import draw_scenes
from tiny_h3.world import AUDIO_LATENTS, HOP, render_audio

SCENES = draw_scenes(48, 4)
CANVAS = (96, 128)


def frames() -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [n, 32] and samples [n, 800] of every frame of both channels."""
    codes = audio_code(SCENES, aspect=CANVAS).permute(0, 1, 3, 2).flatten(0, 2)
    waves = render_audio(SCENES, aspect=CANVAS).reshape(-1, HOP)
    return codes, waves


def test_silence_is_zero_and_zero_is_silence() -> None:
    """A frame's code is zero exactly where its samples are."""
    codes, waves = frames()
    assert codes.shape[1] == len(SWITCHES) + BINS == 32
    assert torch.equal(codes.abs().amax(1) < 1e-6, waves.abs().amax(1) < 1e-6)


def test_equal_codes_sound_alike() -> None:
    """Frames whose codes agree have the same samples: the code leaves nothing out."""
    codes, waves = frames()
    distinct, group = torch.unique(codes, dim=0, return_inverse=True)
    assert len(distinct) < len(codes) - 1_000
    one_of_each = torch.zeros(len(distinct), HOP).index_copy(0, group, waves)
    assert float((waves - one_of_each[group]).abs().amax()) < 1e-5


def test_rows_are_normalised() -> None:
    """Rows of many scenes have about mean zero and deviation one in every channel, left channel first."""
    scale = audio_scale(torch.device("cpu"))
    rows = scale.scene_rows(draw_scenes(256, 9), CANVAS)
    assert rows.shape == (256, 2 * AUDIO_LATENTS, 32)
    flat = rows.flatten(0, 1)
    assert float(flat.mean(0).abs().max()) < 0.25
    assert 0.6 < float(flat.std(0).min()) <= float(flat.std(0).max()) < 1.4
    left = (audio_code(SCENES[:1], aspect=CANVAS)[0, 0].T - scale.mean) / scale.std
    assert torch.allclose(scale.scene_rows(SCENES[:1], CANVAS)[0, :AUDIO_LATENTS], left)
