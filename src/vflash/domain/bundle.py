"""What a conditioning bundle says of itself, in plain JSON: the request, its schedule, conditions and identities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, field, frozen

from vflash.domain.canvas import Canvas, check_canvas
from vflash.domain.duration import FPS, MAX_DURATION_S, MIN_DURATION_S
from vflash.domain.fields import from_mapping, whole_number
from vflash.domain.model_facts import ModelFacts
from vflash.domain.packing import Condition, Keyframe, PictureBlock, SoundBlock, VideoBlock
from vflash.domain.plan import Plan, denoiser_folder, make_plan
from vflash.domain.profiles import Profile, schedule_of
from vflash.domain.request import Mode
from vflash.domain.schedule import Schedule
from vflash_ports.errors import CheckpointError, ContractError

MAX_LATENT_SIDE = 1 << 16
KINDS: Mapping[str, type[Any]] = {
    "keyframe": Keyframe,
    "picture": PictureBlock,
    "video": VideoBlock,
    "sound": SoundBlock,
}
PARTS = ("request", "schedule", "conditions", "identities")


def _mode(value: Any) -> Mode:
    if value not in tuple(Mode):
        raise ContractError(f"mode must be one of {', '.join(Mode)}, got {value!r}")
    return Mode(value)


@frozen(kw_only=True)
class BundleRequest:
    """The request that was encoded; the prompt and the inputs are present as digests alone."""

    mode: Mode = field(converter=_mode)
    width: int = field(validator=whole_number(1, MAX_LATENT_SIDE))
    height: int = field(validator=whole_number(1, MAX_LATENT_SIDE))
    duration_s: int = field(validator=whole_number(MIN_DURATION_S, MAX_DURATION_S))
    seed: int = field(validator=whole_number(0, 2**63 - 1))
    prompt_sha256: str
    inputs: list[dict[str, Any]]


def bundle_body(
    plan: Plan,
    conditions: Sequence[Condition],
    *,
    prompt_sha256: str,
    inputs: list[dict[str, Any]],
    identities: Mapping[str, str],
) -> dict[str, Any]:
    request = BundleRequest(
        mode=plan.mode,
        width=plan.canvas.width,
        height=plan.canvas.height,
        duration_s=plan.length.delivered_frames // FPS,
        seed=plan.seed,
        prompt_sha256=prompt_sha256,
        inputs=inputs,
    )
    names = {kind: name for name, kind in KINDS.items()}
    return {
        "request": {**asdict(request), "mode": str(request.mode)},
        "schedule": asdict(plan.schedule),
        "conditions": [{"kind": names[type(block)], **asdict(block)} for block in conditions],
        "identities": dict(identities),
    }


def read_body(
    body: Mapping[str, Any],
    facts: ModelFacts,
    identities: Mapping[str, str],
    *,
    profile: Profile | None,
    what: str,
) -> tuple[Plan, tuple[Condition, ...]]:
    """The plan and the conditions, for a checkpoint with `facts` and `identities` that runs `profile`.

    Raises `CheckpointError` for anything that is not as `bundle_body` writes it, or that belongs to another run.
    """
    try:
        if set(body) != set(PARTS):
            raise ContractError(f"expected exactly {', '.join(PARTS)}, found {', '.join(sorted(body))}")
        request = from_mapping(BundleRequest, "request", body["request"])
        canvas = check_canvas(Canvas(width=request.width, height=request.height), multiple=facts.canvas_multiple)
        given = from_mapping(Schedule, "schedule", body["schedule"])
        schedule = schedule_of(
            profile,
            component=denoiser_folder(request.mode),
            steps=given.evaluations,
            video_shift=given.video_shift,
            audio_shift=given.audio_shift,
            defaults=(facts.video_shift, facts.audio_shift),
        )
        plan = make_plan(
            facts,
            mode=request.mode,
            canvas=canvas,
            duration_s=request.duration_s,
            schedule=schedule,
            seed=request.seed,
        )
        conditions = tuple(_condition(item) for item in body["conditions"])
    except (ContractError, TypeError) as error:
        raise CheckpointError(f"{what}: {error}") from error
    for name, value in identities.items():
        if body["identities"].get(name) != value:
            raise CheckpointError(f"{what}: was encoded with another {name}; encode it again with this checkpoint")
    return plan, conditions


def _condition(item: Mapping[str, Any]) -> Condition:
    values = dict(item)
    kind = KINDS.get(values.pop("kind", ""))
    if kind is None:
        raise ContractError(f"a condition must be one of {', '.join(KINDS)}, got {item!r}")
    for name, value in values.items():
        wanted = bool if name == "last" else int
        if type(value) is not wanted or not 0 <= value <= MAX_LATENT_SIDE:
            raise ContractError(f"condition {name} must be a small {wanted.__name__}, got {value!r}")
    return from_mapping(kind, "a condition", values)
