"""The plan: canvas, counts and the joint budget, before anything loads."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash.domain.canvas import Canvas
from vflash.domain.duration import clip_length
from vflash.domain.model_facts import GeometryFacts
from vflash.domain.plan import JOINT_BUDGET, check_budget, check_plan, plan_request
from vflash.domain.request import Mode, VideoRequest
from vflash_ports.errors import ContractError


def ask(**fields) -> VideoRequest:
    return VideoRequest(prompt="rain", **fields)


def length(seconds: int):
    return clip_length(seconds, clip_frames=17, clip_latents=5)


def test_a_plan_is_the_request_in_the_model_s_units(facts):
    """Latent sizes, counts, both shifts, the seed and the delivered samples."""
    plan = plan_request(ask(width=1344, height=768, duration_s=6, steps=4, seed=9), facts)
    assert (plan.latent_width, plan.latent_height) == (84, 48)
    assert (plan.length.model_frames, plan.length.latent_frames) == (158, 47)
    assert (plan.schedule.evaluations, plan.schedule.video_shift, plan.schedule.audio_shift) == (4, 12.0, 3.0)
    assert (plan.seed, plan.sample_rate_hz, plan.hop) == (9, 32_000, 800)
    assert plan.delivered_samples == 192_000
    assert plan.reference_seconds == 158 / 24


@pytest.mark.parametrize(
    ("inputs", "mode", "folder"),
    [
        ({}, Mode.T2VA, "transformer"),
        ({"first_frame": "a"}, Mode.I2VA, "transformer"),
        ({"last_frame": "a"}, Mode.L2VA, "transformer"),
        ({"first_frame": "a", "last_frame": "b"}, Mode.FL2VA, "transformer"),
        ({"references": ["a.png"]}, Mode.REF2VA, "transformer_ref"),
    ],
)
def test_references_run_on_their_own_weights(facts, inputs, mode, folder):
    """Text and keyframe modes share one denoiser."""
    plan = plan_request(ask(**inputs), facts)
    assert (plan.mode, plan.denoiser) == (mode, folder)


def test_the_canvas_is_the_request_s_then_the_keyframe_s_then_sixteen_to_nine(facts):
    """An explicit canvas wins; a keyframe's aspect decides where none is named."""
    assert plan_request(ask(), facts).canvas == Canvas(width=1344, height=768)
    assert plan_request(ask(), facts, keyframe_size=(300, 400)).canvas == Canvas(width=768, height=1024)
    explicit = plan_request(ask(width=64, height=96), facts, keyframe_size=(300, 400)).canvas
    assert explicit == Canvas(width=64, height=96)


def test_the_checkpoint_s_own_geometry_is_used(facts):
    """A checkpoint trained for another canvas gives another default."""
    tiny = attrs.evolve(facts, geometry=GeometryFacts(canvas_short_edge=64, canvas_max_pixels=8192))
    assert plan_request(ask(), tiny).canvas == Canvas(width=128, height=64)


def test_an_illegal_canvas_is_refused(facts):
    """By the model's own multiple, not by a constant."""
    with pytest.raises(ContractError, match="width must be a positive multiple of 32, got 100"):
        plan_request(ask(width=100, height=96), facts)
    doubled = attrs.evolve(facts, denoiser=attrs.evolve(facts.denoiser, patch_size=(1, 4, 4)))
    with pytest.raises(ContractError, match="width must be a positive multiple of 64, got 96"):
        plan_request(ask(width=96, height=128), doubled)


def test_the_joint_budget_is_inclusive():
    """2048 x 2048 for 124 frames fits exactly; one multiple or one clip more does not."""
    square = Canvas(width=2048, height=2048)
    check_budget(square, length(5))
    assert square.pixels * 124 == JOINT_BUDGET
    with pytest.raises(ContractError, match="at most 124 frames"):
        check_budget(square, length(6))


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 64), st.integers(1, 64), st.integers(5, 15))
def test_over_budget_is_refused_never_shrunk(columns, rows, seconds):
    """A canvas and a duration that are legal alone may be too much together; the cure named is itself within it."""
    canvas = Canvas(width=32 * columns, height=32 * rows)
    frames = length(seconds).model_frames
    if canvas.pixels * frames <= JOINT_BUDGET:
        check_budget(canvas, length(seconds))
        return
    with pytest.raises(ContractError) as caught:
        check_budget(canvas, length(seconds))
    message = str(caught.value)
    assert str(canvas) in message
    assert f"at most {JOINT_BUDGET // canvas.pixels} frames" in message
    assert f"at most {JOINT_BUDGET // frames} pixels" in message


def test_what_no_input_can_change_is_refused_before_one_is_opened(facts):
    """With an explicit canvas, or without keyframes, the whole plan is known from the request alone."""
    check_plan(ask(), facts)
    for request in (
        ask(width=2048, height=2048, duration_s=6),
        ask(width=2048, height=2048, duration_s=6, first_frame="a"),
        ask(width=2048, height=2048, duration_s=6, references=["a.png"]),
    ):
        with pytest.raises(ContractError, match="joint limit"):
            check_plan(request, facts)


def test_a_canvas_that_follows_a_keyframe_is_not_judged_early(facts):
    """A checkpoint's 16:9 may be over the budget where a square keyframe is not."""
    wide = attrs.evolve(facts, geometry=GeometryFacts(canvas_short_edge=1024, canvas_max_pixels=1024 * 2048))
    request = ask(duration_s=15, first_frame="a")
    with pytest.raises(ContractError, match="joint limit"):
        check_plan(ask(duration_s=15), wide)
    check_plan(request, wide)
    assert plan_request(request, wide, keyframe_size=(50, 50)).canvas == Canvas(width=1024, height=1024)
