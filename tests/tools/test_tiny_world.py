"""The small world: seeded, and its ground truth is what the pixels and the samples hold."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_h3.scenes import BACKGROUNDS, COLOURS, MOTIONS, Scenes, describe, draw_scenes
from tiny_h3.world import AUDIO_LATENTS, FPS, FRAMES, HOP, Truth, locate, render_audio, render_video, truth
from vflash_adapters.judge.description import Motion, Rhythm
from vflash_adapters.judge.palette import BACKGROUND_RGB, OBJECT_RGB

HEIGHT, WIDTH = 64, 96


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return draw_scenes(48, seed=5)


@pytest.fixture(scope="module")
def exact(scenes: Scenes) -> Truth:
    return truth(scenes, HEIGHT, WIDTH)


def test_a_seed_fixes_everything() -> None:
    """The same seed gives the same descriptions, pixels and samples; another seed gives others."""
    first, again, other = draw_scenes(3, 1), draw_scenes(3, 1), draw_scenes(3, 2)
    assert describe(first) == describe(again)
    assert describe(first) != describe(other)
    pictures = [render_video(s, 32, 32, frames=4) for s in (first, again)]
    assert torch.equal(*pictures)
    assert torch.equal(render_audio(first), render_audio(again))


def test_every_category_is_drawn() -> None:
    """In a thousand scenes each motion, colour and background is common, and no object has its background's name."""
    found = describe(draw_scenes(1000, 0))
    for options, values in (
        (MOTIONS, [d.motion for d in found]),
        (COLOURS, [d.colour for d in found]),
        (BACKGROUNDS, [d.background for d in found]),
    ):
        assert min(values.count(option) for option in options) > 1000 / len(options) / 2
    assert all(str(d.colour) != str(d.background) for d in found)
    assert all((d.rhythm is Rhythm.CLICKS) == (d.motion is Motion.BOUNCE) for d in found)
    assert all(d.second is None or d.second.colour is not d.colour for d in found)


def test_sizes_follow_the_model(scenes: Scenes) -> None:
    """124 modelled frames at 24 a second, and 207 audio latents of 800 samples."""
    one = scenes[:1]
    assert render_video(one, 32, 32).shape == (1, 3, FRAMES, 32, 32)
    assert render_audio(one).shape == (1, 2, AUDIO_LATENTS * HOP)
    assert AUDIO_LATENTS * HOP == 165_600


def test_positions_are_where_the_pixels_are(scenes: Scenes, exact: Truth) -> None:
    """The centre of mass of the object's own colour is the true centre within half a pixel, its area the true area."""
    frames = render_video(scenes, HEIGHT, WIDTH)[:, :, ::20]
    rows = torch.arange(HEIGHT).view(-1, 1) + 0.5
    columns = torch.arange(WIDTH) + 0.5
    seen = 0
    for i, found in enumerate(describe(scenes)):
        if found.second is not None:
            continue
        seen += 1
        ground = torch.tensor(BACKGROUND_RGB[found.background]) / 255
        colour = torch.tensor(OBJECT_RGB[found.colour]) / 255
        axis = colour - ground
        cover = torch.einsum("c,cfhw->fhw", axis, frames[i] - ground.view(3, 1, 1, 1)) / axis.square().sum()
        area = cover.sum((1, 2))
        x = (cover * columns).sum((1, 2)) / area
        y = (cover * rows).sum((1, 2)) / area
        assert (x - exact.x[i, ::20] * WIDTH).abs().max() < 0.5
        assert (y - exact.y[i, ::20] * HEIGHT).abs().max() < 1.0
        true_area = math.pi * (exact.radius[i, ::20] * HEIGHT) ** 2
        assert ((area - true_area).abs() / true_area).max() < 0.2
    assert seen > 20


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), height=st.sampled_from([64, 96]), width=st.sampled_from([64, 128]))
def test_nothing_leaves_the_canvas(seed: int, height: int, width: int) -> None:
    """Every object stays whole inside the picture, whatever the canvas."""
    scenes = draw_scenes(64, seed)
    x, y, radius = locate(scenes, torch.arange(FRAMES) / FPS, height, width)
    across = radius * min(height, width) / width
    down = radius * min(height, width) / height
    assert bool(((x - across > 0) & (x + across < 1) & (y - down > 0) & (y + down < 1)).all())


def test_motions_do_what_they_say(scenes: Scenes, exact: Truth) -> None:
    """Net displacement, turning and size change are those of the named motion."""
    for i, found in enumerate(describe(scenes)):
        dx = float(exact.x[i, -1] - exact.x[i, 0])
        dy = float(exact.y[i, -1] - exact.y[i, 0])
        grown = float(exact.radius[i, -1] / exact.radius[i, 0])
        expected = {
            Motion.LEFT: dx < -0.3,
            Motion.RIGHT: dx > 0.3,
            Motion.UP: dy < -0.3,
            Motion.DOWN: dy > 0.3,
            Motion.GROW: grown > 2,
            Motion.SHRINK: grown < 0.5,
            Motion.BOUNCE: float(exact.y[i].max() - exact.y[i].min()) > 0.3,
            Motion.CIRCLE: float(exact.x[i].max() - exact.x[i].min()) > 0.3,
        }
        assert found.motion is not None
        assert expected[found.motion]


def test_clicks_fall_on_the_floor(scenes: Scenes, exact: Truth) -> None:
    """At the time of a click the object is at its lowest, and the sound starts there and not before."""
    wave = render_audio(scenes)
    bounces = [i for i, d in enumerate(describe(scenes)) if d.motion is Motion.BOUNCE]
    assert len(bounces) > 2
    for i in bounces:
        latents = exact.click[i].nonzero().flatten()
        assert len(latents) >= 3
        _, y, _ = locate(scenes[i : i + 1], latents / 40, HEIGHT, WIDTH)
        assert float(y.min()) >= float(exact.y[i].max()) - 1e-5
        first = int(latents[0]) * HOP
        assert wave[i, :, :first].abs().max() == 0
        assert wave[i, :, first : first + HOP].abs().max() > 0.05


def test_the_tone_has_the_true_pitch(scenes: Scenes, exact: Truth) -> None:
    """The strongest frequency of each sounding latent frame is the true one."""
    spectrum = torch.fft.rfft(render_audio(scenes).sum(1).view(scenes.count, AUDIO_LATENTS, HOP)).abs()
    heard = spectrum.argmax(-1) * 40.0
    steady = exact.pitch_hz > 0
    assert torch.equal(heard[steady], exact.pitch_hz[steady])


def test_the_pan_follows_the_object(scenes: Scenes, exact: Truth) -> None:
    """The right channel's share of the level is the sine of the horizontal place."""
    level = render_audio(scenes, aspect=(HEIGHT, WIDTH)).view(scenes.count, 2, AUDIO_LATENTS, HOP).square().mean(-1)
    loud = level.sum(1) > 1e-4
    heard = torch.atan2(level[:, 1].sqrt(), level[:, 0].sqrt()) / (math.pi / 2)
    frame_of = (torch.arange(AUDIO_LATENTS) * FPS / 40 + 0.3).long().clamp(max=FRAMES - 1)
    assert (heard - exact.x[:, frame_of]).abs()[loud].max() < 0.05


def test_a_window_is_a_cut_of_the_whole(scenes: Scenes) -> None:
    """Rendering later frames alone gives the same pixels as cutting them out of the clip."""
    two = scenes[:2]
    whole = render_video(two, 32, 64)
    window = render_video(two, 32, 64, first_frame=torch.tensor([17, 51]), frames=22)
    assert torch.allclose(window[0], whole[0, :, 17:39], atol=1e-5)
    assert torch.allclose(window[1], whole[1, :, 51:73], atol=1e-5)
