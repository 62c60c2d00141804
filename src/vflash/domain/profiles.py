"""Profiles: how many evaluations, which shifts and which adapter belong together. Facts of the publishers' cards.

A distilled adapter is right on its own schedule only; off it nothing fails, the picture just decays. So a profile fixes
evaluations and both shifts, and a request that says otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attrs import field, frozen

from vflash.domain.fields import shown
from vflash.domain.schedule import AUDIO_SHIFT, VIDEO_SHIFT, Schedule
from vflash_ports.errors import ContractError

BASE_EVALUATIONS = 50
KEYFRAMES, REFERENCES = "transformer", "transformer_ref"


@frozen(kw_only=True)
class AdapterIdentity:
    """A published adapter: every file name it was released under (diffusers and ComfyUI twins), its rank and alpha."""

    file_names: tuple[str, ...]
    rank: int
    alpha: float

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@frozen(kw_only=True)
class Profile:
    """`component` is the transformer that runs it; `adapter` None means the base weights alone."""

    name: str
    component: str
    evaluations: int
    video_shift: float = VIDEO_SHIFT
    audio_shift: float = AUDIO_SHIFT
    adapter: AdapterIdentity | None = field(default=None)

    @property
    def schedule(self) -> Schedule:
        return Schedule(evaluations=self.evaluations, video_shift=self.video_shift, audio_shift=self.audio_shift)


def _lightx2v(stem: str, alpha: float, *, plain: bool = False) -> AdapterIdentity:
    names = (f"{stem}.safetensors",) if plain else (f"{stem}_bf16.safetensors", f"{stem}_comfyui_bf16.safetensors")
    return AdapterIdentity(file_names=names, rank=128, alpha=alpha)


_ALL = (
    Profile(name="base16", component=KEYFRAMES, evaluations=16),
    Profile(
        name="turbo4-v0.1-544p",
        component=KEYFRAMES,
        evaluations=4,
        adapter=_lightx2v("minimax_h3_fl2v_turbo_4step_v0.1", 8.0, plain=True),
    ),
    Profile(
        name="turbo4-v1.0",
        component=KEYFRAMES,
        evaluations=4,
        video_shift=6.0,
        adapter=_lightx2v("minimax_h3_fl2v_turbo_4step_v1.0_768p", 128.0),
    ),
    Profile(
        name="turbo4-v1.1",
        component=KEYFRAMES,
        evaluations=4,
        video_shift=6.0,
        adapter=_lightx2v("minimax_h3_fl2v_turbo_4step_v1.1_768p", 128.0),
    ),
    Profile(
        name="turbo4-v1.2",
        component=KEYFRAMES,
        evaluations=4,
        video_shift=6.0,
        adapter=_lightx2v("minimax_h3_fl2v_turbo_4step_v1.2_768p", 8.0),
    ),
    Profile(
        name="turbo8-v1.0",
        component=KEYFRAMES,
        evaluations=8,
        video_shift=6.0,
        adapter=_lightx2v("minimax_h3_fl2v_turbo_8step_v1.0_768p", 8.0),
    ),
    Profile(
        name="turbo8-v1.0-544p",
        component=KEYFRAMES,
        evaluations=8,
        adapter=_lightx2v("minimax_h3_fl2v_turbo_8step_v1.0", 8.0),
    ),
    Profile(
        name="ref-turbo4-v0.1",
        component=REFERENCES,
        evaluations=4,
        adapter=_lightx2v("minimax_h3_ref2v_turbo_4step_v0.1", 8.0),
    ),
    Profile(
        name="ref-turbo8-v1.0",
        component=REFERENCES,
        evaluations=8,
        video_shift=6.0,
        adapter=_lightx2v("minimax_h3_ref2v_turbo_8step_v1.0_768p", 8.0),
    ),
)
PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in _ALL})


def find_profile(name: str) -> Profile:
    """Raises `ContractError` listing the names for an unknown one."""
    found = PROFILES.get(name) if isinstance(name, str) else None
    if found is None:
        raise ContractError(f"profile {shown(name)} is unknown; choose one of {', '.join(PROFILES)}")
    return found


def profile_of_adapter(file_name: str) -> Profile | None:
    """The profile of a published adapter file, by its released name; None for any other file."""
    for profile in PROFILES.values():
        if profile.adapter is not None and file_name in profile.adapter.file_names:
            return profile
    return None


def choose_profile(name: str | None, adapter_file: str | None) -> Profile | None:
    """The profile that was asked for, or that a published adapter implies.

    Raises `ContractError` if the two differ, or if a profile's adapter was not given.
    """
    asked = None if name is None else find_profile(name)
    implied = None if adapter_file is None else profile_of_adapter(adapter_file)
    if asked is None:
        return implied
    if implied is not None and implied.name != asked.name:
        raise ContractError(f"adapter {adapter_file} belongs to profile {implied.name}, not to {asked.name}")
    if asked.adapter is not None and adapter_file is None:
        raise ContractError(
            f"profile {asked.name} needs its adapter, {' or '.join(asked.adapter.file_names)}; pass it as --adapter"
        )
    if asked.adapter is None and adapter_file is not None:
        raise ContractError(f"profile {asked.name} runs without an adapter; drop --adapter or choose another profile")
    return asked


def check_adapter(profile: Profile | None, scales: Mapping[str, float], strength: float) -> None:
    """Refuse an adapter whose modules run at another scale than its profile's (times `strength`).

    `scales`: module -> the scale it will run at.
    """
    if profile is None or profile.adapter is None:
        return
    expected = profile.adapter.scale * strength
    for module, scale in scales.items():
        if abs(scale - expected) > 1e-6 * expected:
            raise ContractError(
                f"profile {profile.name} runs its adapter at scale {expected:g} (alpha {profile.adapter.alpha:g} / "
                f"rank {profile.adapter.rank}), but {module} of this file has {scale:g}"
            )


def schedule_of(
    profile: Profile | None,
    *,
    component: str,
    steps: int | None,
    video_shift: float | None,
    audio_shift: float | None,
    defaults: tuple[float, float],
) -> Schedule:
    """The schedule of a request: the profile's, or the request's over the checkpoint's own shifts (`defaults`).

    Raises `ContractError` for steps or shifts that contradict the profile, and for a mode that another component runs.
    """
    if profile is None:
        return Schedule(
            evaluations=BASE_EVALUATIONS if steps is None else steps,
            video_shift=defaults[0] if video_shift is None else video_shift,
            audio_shift=defaults[1] if audio_shift is None else audio_shift,
        )
    if component != profile.component:
        other = "reference" if profile.component == REFERENCES else "text and keyframe"
        raise ContractError(f"profile {profile.name} is for {other} modes; choose a profile of this request's mode")
    asked = {"steps": steps, "video shift": video_shift, "audio shift": audio_shift}
    fixed = {
        "steps": profile.evaluations,
        "video shift": profile.video_shift,
        "audio shift": profile.audio_shift,
    }
    for name, value in asked.items():
        if value is not None and value != fixed[name]:
            raise ContractError(f"profile {profile.name} runs {name} {fixed[name]:g}, got {value:g}; leave it out")
    return profile.schedule
