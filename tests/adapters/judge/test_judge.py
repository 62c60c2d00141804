"""The judge: right on clips whose truth is known, and not fooled by clips that are wrong in one thing."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import numpy as np
import pytest
from PIL import Image

from calibrate_judge import CANVASES, Canvas, calibrate, encoded, wilson
from tiny_h3.scenes import Scenes, describe, draw_scenes
from tiny_h3.world import FPS, render_audio, render_video
from vflash_adapters.judge.description import Background, Colour, Motion, Shape
from vflash_adapters.judge.file import judge_file
from vflash_adapters.judge.reading import PlayedClip
from vflash_adapters.judge.verdict import Verdict, judge, measure
from vflash_adapters.judge.write import Language, write_caption
from vflash_ports.errors import ContractError, MediaError

SMALL = Canvas(height=64, width=64)


def played(scene: Scenes) -> PlayedClip:
    """A scene as it would be heard and seen without any encoding."""
    frames = render_video(scene, SMALL.height, SMALL.width, frames=120)[0]
    sound = render_audio(scene, aspect=(SMALL.height, SMALL.width))[0, :, :160_000]
    pictures = (frames * 255).round().byte().permute(1, 2, 3, 0).numpy()
    return PlayedClip(frames=pictures, fps=FPS, waveform=sound.numpy(), sample_rate_hz=32_000)


def scene_of(motion: Motion, seed: int = 0) -> Scenes:
    scenes = draw_scenes(64, seed)
    return next(scenes[i : i + 1] for i, d in enumerate(describe(scenes)) if d.motion is motion)


def right(verdict: Verdict) -> dict[str, bool]:
    return {a.name: a.right for a in verdict.attributes}


def test_it_is_right_on_encoded_clips(tmp_path: Path) -> None:
    """At least 98 % of all attributes of 24 clips, delivered as MP4, are judged right."""
    found = calibrate(24, 31, SMALL, tmp_path)
    assert found.accuracy >= 0.98
    assert {"colour", "shape", "size", "motion", "background", "pitch", "rhythm", "pan", "sync"} < set(found.asked)
    assert {"second object", "first frame", "last frame"} < set(found.asked)


@pytest.mark.slow
@pytest.mark.parametrize("canvas", CANVASES, ids=lambda c: f"{c.width}x{c.height}")
def test_full_calibration(canvas: Canvas, tmp_path: Path) -> None:
    """At least 98 % right over 100 clips of each canvas, and no attribute below 93 %."""
    found = calibrate(100, 4_000, canvas, tmp_path)
    assert found.accuracy >= 0.98
    assert all(found.right[name] / asked >= 0.93 for name, asked in found.asked.items())


@pytest.mark.parametrize("motion", Motion)
def test_a_wrong_caption_is_found_out(motion: Motion) -> None:
    """Against a caption that is wrong in colour, shape, motion and background, exactly those four are wrong."""
    scene = scene_of(motion)
    truth = describe(scene)[0]
    assert truth.colour is not None
    assert truth.shape is not None
    assert truth.background is not None
    wrong = attrs.evolve(
        truth,
        colour=next(c for c in Colour if c is not truth.colour),
        shape=next(s for s in Shape if s is not truth.shape),
        background=next(b for b in Background if b is not truth.background),
    )
    measured = measure(played(scene))
    assert all(right(judge(measured, truth)).values())
    answers = right(judge(measured, wrong))
    assert [name for name, good in answers.items() if not good] == ["colour", "shape", "background"]
    other = Motion.GROW if motion is not Motion.GROW else Motion.UP
    assert not right(judge(measured, attrs.evolve(truth, motion=other)))["motion"]


def test_swapped_channels_are_found_out() -> None:
    """With left and right exchanged the pan no longer follows the object, nor moves with it."""
    scene = scene_of(Motion.LEFT)
    clip = played(scene)
    swapped = attrs.evolve(clip, waveform=clip.waveform[::-1].copy())
    answers = right(judge(measure(swapped), describe(scene)[0]))
    assert not answers["pan"]
    assert not answers["sync"]
    assert answers["pitch"]


def test_a_late_soundtrack_is_found_out() -> None:
    """Clicks a quarter of a second after the bounce are out of sync; the rest is unharmed."""
    scene = scene_of(Motion.BOUNCE)
    clip = played(scene)
    late = attrs.evolve(clip, waveform=np.roll(clip.waveform, 8000, axis=1))
    answers = right(judge(measure(late), describe(scene)[0]))
    assert not answers["sync"]
    assert answers["rhythm"]
    assert answers["motion"]


def test_an_empty_clip_is_judged_not_crashed() -> None:
    """Grey silence scores nothing but does not fail."""
    clip = PlayedClip(
        frames=np.full((120, 64, 64, 3), 118, np.uint8),
        fps=24.0,
        waveform=np.zeros((2, 160_000), np.float32),
        sample_rate_hz=32_000,
    )
    verdict = judge(measure(clip), describe(scene_of(Motion.LEFT))[0])
    assert [a.name for a in verdict.attributes if a.right] in ([], ["background"])


def test_a_still_object_has_no_motion() -> None:
    """One frame repeated has colour and shape, but no motion."""
    scene = scene_of(Motion.RIGHT)
    clip = played(scene)
    frozen = attrs.evolve(clip, frames=np.repeat(clip.frames[:1], 120, axis=0))
    answers = right(judge(measure(frozen), describe(scene)[0]))
    assert answers["shape"]
    assert not answers["motion"]


def test_a_file_is_judged_with_its_keyframes(tmp_path: Path) -> None:
    """`judge_file` reads MP4, caption (either language) and pictures; a wrong picture does not match."""
    scene = scene_of(Motion.CIRCLE, seed=3)
    _, truth = encoded(scene, SMALL, tmp_path / "clip.mp4")
    Image.fromarray(truth[0].numpy()).save(tmp_path / "first.png")
    description = describe(scene)[0]
    for language in Language:
        verdict = judge_file(
            tmp_path / "clip.mp4", write_caption(description, language), first_frame=tmp_path / "first.png"
        )
        assert verdict.score == 1.0
        assert verdict.as_dict()["attributes"]["first frame"]["right"]
    wrong = judge_file(
        tmp_path / "clip.mp4", "a red ball", first_frame=tmp_path / "first.png", last_frame=tmp_path / "first.png"
    )
    assert not right(wrong)["last frame"]


def test_bad_input_is_named(tmp_path: Path) -> None:
    """A missing clip, a file that is no clip, a picture that is none, and words outside the grammar are errors."""
    with pytest.raises(MediaError, match=r"missing.mp4 does not exist"):
        judge_file(tmp_path / "missing.mp4", "a red ball")
    (tmp_path / "text.mp4").write_text("not a clip")
    with pytest.raises(MediaError, match=r"text.mp4 cannot be decoded"):
        judge_file(tmp_path / "text.mp4", "a red ball")
    with pytest.raises(ContractError, match="elephant"):
        judge_file(tmp_path / "text.mp4", "a red elephant")
    encoded(scene_of(Motion.LEFT), SMALL, tmp_path / "clip.mp4")
    with pytest.raises(MediaError, match=r"keyframe .*text.mp4 cannot be read"):
        judge_file(tmp_path / "clip.mp4", "a red ball", first_frame=tmp_path / "text.mp4")


def test_the_interval_holds_the_share() -> None:
    """Wilson's interval contains the share, narrows with more questions and stays in [0, 1]."""
    for right_count, asked in ((0, 5), (5, 5), (90, 100), (900, 1000)):
        low, high = wilson(right_count, asked)
        assert 0.0 <= low <= right_count / asked <= high <= 1.0
    assert np.diff(wilson(900, 1000))[0] < np.diff(wilson(90, 100))[0]


def test_the_command_prints_every_attribute(tmp_path: Path) -> None:
    """A table for people, JSON for programs, and an exit status that can gate on the score."""
    from typer.testing import CliRunner

    from vflash.cli import app

    scene = scene_of(Motion.UP)
    encoded(scene, SMALL, tmp_path / "clip.mp4")
    caption = write_caption(describe(scene)[0], Language.ENGLISH)
    command = ["judge", str(tmp_path / "clip.mp4"), "--expect", caption]
    table = CliRunner().invoke(app, [*command, "--require", "1.0"])
    assert table.exit_code == 0
    assert "right  motion         expected up, measured up" in table.output
    assert "100% of" in table.output
    program = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(program.output)["attributes"]["motion"] == {"expected": "up", "measured": "up", "right": True}
    wrong = CliRunner().invoke(app, ["judge", command[1], "--expect", "a ring falls", "--require", "1.0"])
    assert wrong.exit_code == 1
    assert "WRONG  motion" in wrong.output
