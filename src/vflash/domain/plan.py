"""The plan of a request: pure numbers, made before anything heavy loads."""

from __future__ import annotations

from attrs import evolve, frozen

from vflash.domain.canvas import Canvas, canvas_for_aspect, check_canvas
from vflash.domain.duration import FPS, ClipLength, clip_length
from vflash.domain.model_facts import ModelFacts
from vflash.domain.profiles import Profile, schedule_of
from vflash.domain.request import Mode, VideoRequest
from vflash.domain.schedule import Schedule
from vflash_ports.errors import ContractError

JOINT_BUDGET = 2048 * 2048 * 124
"""width * height * modelled frames; what each allows alone may be too much together."""
DEFAULT_ASPECT = (16, 9)


@frozen(kw_only=True)
class Plan:
    """Everything that follows from the request and the checkpoint's configs."""

    mode: Mode
    canvas: Canvas
    length: ClipLength
    schedule: Schedule
    seed: int
    denoiser: str
    latent_height: int
    latent_width: int
    sample_rate_hz: int
    hop: int

    @property
    def delivered_samples(self) -> int:
        return self.length.delivered_frames * self.sample_rate_hz // FPS

    @property
    def reference_seconds(self) -> float:
        """Reference sound is cut to the modelled length."""
        return self.length.model_frames / FPS


def plan_request(
    request: VideoRequest,
    facts: ModelFacts,
    *,
    keyframe_size: tuple[int, int] | None = None,
    profile: Profile | None = None,
) -> Plan:
    """`keyframe_size` (width, height) of the first keyframe given decides the canvas where the request names none;
    `profile` fixes evaluations and shifts."""
    schedule = schedule_of(
        profile,
        component=denoiser_folder(request.mode),
        steps=request.steps,
        video_shift=request.video_shift,
        audio_shift=request.audio_shift,
        defaults=(facts.video_shift, facts.audio_shift),
    )
    canvas = _canvas(request, facts, keyframe_size)
    return make_plan(
        facts, mode=request.mode, canvas=canvas, duration_s=request.duration_s, schedule=schedule, seed=request.seed
    )


def make_plan(facts: ModelFacts, *, mode: Mode, canvas: Canvas, duration_s: int, schedule: Schedule, seed: int) -> Plan:
    codec = facts.codec
    length = clip_length(duration_s, clip_frames=codec.clip_frames, clip_latents=codec.clip_latents)
    check_budget(canvas, length)
    return Plan(
        mode=mode,
        canvas=canvas,
        length=length,
        schedule=schedule,
        seed=seed,
        denoiser=denoiser_folder(mode),
        latent_height=canvas.height // codec.spatial_ratio,
        latent_width=canvas.width // codec.spatial_ratio,
        sample_rate_hz=codec.sample_rate_hz,
        hop=codec.hop,
    )


def check_plan(request: VideoRequest, facts: ModelFacts, profile: Profile | None = None) -> None:
    """What can be refused before an input is opened: all of the plan, unless its canvas follows a keyframe."""
    if request.width is not None or not (request.first_frame or request.last_frame):
        plan_request(request, facts, profile=profile)


def replan(plan: Plan, facts: ModelFacts, *, duration_s: int, canvas: Canvas) -> Plan:
    """The same request at another length and size."""
    codec = facts.codec
    return evolve(
        plan,
        canvas=canvas,
        length=clip_length(duration_s, clip_frames=codec.clip_frames, clip_latents=codec.clip_latents),
        latent_height=canvas.height // codec.spatial_ratio,
        latent_width=canvas.width // codec.spatial_ratio,
    )


def denoiser_folder(mode: Mode) -> str:
    """References run on their own weights."""
    return "transformer_ref" if mode is Mode.REF2VA else "transformer"


def check_budget(canvas: Canvas, length: ClipLength) -> None:
    work = canvas.pixels * length.model_frames
    if work > JOINT_BUDGET:
        frames = JOINT_BUDGET // canvas.pixels
        raise ContractError(
            f"{canvas} for {length.model_frames} frames is over the joint limit of {JOINT_BUDGET} pixel-frames; "
            f"take at most {frames} frames, or a canvas of at most {JOINT_BUDGET // length.model_frames} pixels"
        )


def _canvas(request: VideoRequest, facts: ModelFacts, keyframe_size: tuple[int, int] | None) -> Canvas:
    multiple = facts.canvas_multiple
    if request.width is not None and request.height is not None:
        return check_canvas(Canvas(width=request.width, height=request.height), multiple=multiple)
    width, height = keyframe_size or DEFAULT_ASPECT
    return canvas_for_aspect(
        width,
        height,
        multiple=multiple,
        short_edge=facts.geometry.canvas_short_edge,
        max_pixels=facts.geometry.canvas_max_pixels,
    )
