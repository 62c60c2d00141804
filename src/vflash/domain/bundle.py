"""What a conditioning bundle says of itself, in plain JSON: the request, its schedule, conditions and identities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, field, frozen

from vflash.domain.canvas import Canvas, check_canvas
from vflash.domain.duration import FPS, MAX_DURATION_S, MIN_DURATION_S
from vflash.domain.fields import from_mapping, shown, whole_number
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
ENDS: Mapping[Mode, list[bool]] = {
    Mode.T2VA: [],
    Mode.I2VA: [False],
    Mode.L2VA: [True],
    Mode.FL2VA: [False, True],
    Mode.REF2VA: [],
}
"""Which ends a mode's keyframes are, in packed order."""
PARTS = ("request", "schedule", "conditions", "identities")


def _mode(value: Any) -> Mode:
    if value not in tuple(Mode):
        raise ContractError(f"mode must be one of {', '.join(Mode)}, got {value!r}")
    return Mode(value)


def _digest(value: Any) -> str:
    if not isinstance(value, str):
        raise ContractError(f"prompt_sha256 must be text, got {shown(value)}")
    return value


def _inputs(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ContractError(f"inputs must be a list of digests, got {shown(value)}")
    return value


@frozen(kw_only=True)
class BundleRequest:
    """The request that was encoded; the prompt and the inputs are present as digests alone."""

    mode: Mode = field(converter=_mode)
    width: int = field(validator=whole_number(1, MAX_LATENT_SIDE))
    height: int = field(validator=whole_number(1, MAX_LATENT_SIDE))
    duration_s: int = field(validator=whole_number(MIN_DURATION_S, MAX_DURATION_S))
    seed: int = field(validator=whole_number(0, 2**63 - 1))
    prompt_sha256: str = field(converter=_digest)
    inputs: list[dict[str, Any]] = field(converter=_inputs)


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
        _check_parts(body)
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
        _check_mode(request.mode, conditions)
        if set(body["identities"]) != set(identities):
            raise ContractError(f"expected the identities {', '.join(identities)}; encode it again with this release")
    except ContractError as error:
        raise CheckpointError(f"{what}: {error}") from error
    for name, value in identities.items():
        if body["identities"][name] != value:
            raise CheckpointError(f"{what}: was encoded with another {name}; encode it again with this checkpoint")
    return plan, conditions


def _check_parts(body: Mapping[str, Any]) -> None:
    if set(body) != set(PARTS):
        raise ContractError(f"expected exactly {', '.join(PARTS)}, found {', '.join(sorted(body))}")
    for name in PARTS:
        wanted = list if name == "conditions" else dict
        if not isinstance(body[name], wanted):
            raise ContractError(f"{name} must be a {wanted.__name__}, got {shown(body[name])}")


def _check_mode(mode: Mode, conditions: Sequence[Condition]) -> None:
    """The mode chooses the denoiser, so it must be the one that such conditions are encoded for."""
    ends = [block.last for block in conditions if isinstance(block, Keyframe)]
    others = len(conditions) - len(ends)
    if ends != ENDS[mode] or (others > 0) != (mode is Mode.REF2VA):
        raise ContractError(f"{len(conditions)} conditions, {len(ends)} of them keyframes, are none of mode {mode}")


def _condition(item: Any) -> Condition:
    if not isinstance(item, dict):
        raise ContractError(f"a condition must be an object, got {shown(item)}")
    values = dict(item)
    name = values.pop("kind", "")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ContractError(f"a condition must be one of {', '.join(KINDS)}, got {item!r}")
    for name, value in values.items():
        wanted = bool if name == "last" else int
        if type(value) is not wanted or not 0 <= value <= MAX_LATENT_SIDE:
            raise ContractError(f"condition {name} must be a small {wanted.__name__}, got {value!r}")
    return from_mapping(kind, "a condition", values)
