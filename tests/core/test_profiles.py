"""Profiles: evaluations, shifts and adapters as published, and no way to contradict them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash.domain.profiles import (
    PROFILES,
    Profile,
    check_adapter,
    choose_profile,
    find_profile,
    profile_of_adapter,
    schedule_of,
)
from vflash_ports.errors import ContractError

PUBLISHED = {  # name: (component, evaluations, video shift, alpha / rank)
    "base16": ("transformer", 16, 12, None),
    "turbo4-v0.1-544p": ("transformer", 4, 12, 8 / 128),
    "turbo4-v1.0": ("transformer", 4, 6, 1.0),
    "turbo4-v1.1": ("transformer", 4, 6, 1.0),
    "turbo4-v1.2": ("transformer", 4, 6, 8 / 128),
    "turbo8-v1.0": ("transformer", 8, 6, 8 / 128),
    "turbo8-v1.0-544p": ("transformer", 8, 12, 8 / 128),
    "ref-turbo4-v0.1": ("transformer_ref", 4, 12, 8 / 128),
    "ref-turbo8-v1.0": ("transformer_ref", 8, 6, 8 / 128),
}


def test_profiles_are_the_published_ones() -> None:
    """Evaluations, shifts and strengths of each; the audio shift is 3 throughout."""
    found = {
        name: (p.component, p.evaluations, p.video_shift, p.adapter.scale if p.adapter else None)
        for name, p in PROFILES.items()
    }
    assert found == PUBLISHED
    assert {profile.audio_shift for profile in PROFILES.values()} == {3.0}


def test_file_names_are_unambiguous() -> None:
    """A released file belongs to one profile; an unknown one to none."""
    names = [name for p in PROFILES.values() if p.adapter for name in p.adapter.file_names]
    assert len(names) == len(set(names)) == 15
    assert (
        profile_of_adapter("minimax_h3_fl2v_turbo_8step_v1.0_comfyui_bf16.safetensors") is PROFILES["turbo8-v1.0-544p"]
    )
    assert profile_of_adapter("mine.safetensors") is None


@pytest.mark.parametrize("name", ["turbo5", 4, ["base16"], {}])
def test_an_unknown_name_is_told_whatever_its_type(name: object) -> None:
    """The names there are stand in the message, for a value that cannot be a name as well."""
    with pytest.raises(ContractError, match=r"is unknown; choose one of base16, "):
        find_profile(name)  # type: ignore[arg-type]


def schedule(profile: Profile | None, **asked: object) -> object:
    values = {"steps": None, "video_shift": None, "audio_shift": None, "component": "transformer"} | asked
    return schedule_of(profile, defaults=(12.0, 3.0), **values)  # type: ignore[arg-type]


@settings(max_examples=60)
@given(
    name=st.sampled_from([name for name, values in PUBLISHED.items() if values[0] == "transformer"]),
    steps=st.none() | st.integers(1, 60),
    video=st.none() | st.sampled_from([3.0, 6.0, 12.0]),
    audio=st.none() | st.sampled_from([3.0, 6.0]),
)
def test_a_request_cannot_contradict_its_profile(
    name: str, steps: int | None, video: float | None, audio: float | None
) -> None:
    """Any steps or shifts but the profile's own are refused; left out, they are the profile's."""
    profile = PROFILES[name]
    agrees = steps in (None, profile.evaluations) and video in (None, profile.video_shift) and audio in (None, 3.0)
    asked = {"steps": steps, "video_shift": video, "audio_shift": audio}
    if agrees:
        assert schedule(profile, **asked) == profile.schedule
    else:
        with pytest.raises(ContractError, match=f"profile {name} runs"):
            schedule(profile, **asked)


def test_without_a_profile_the_checkpoint_decides() -> None:
    """50 evaluations at the checkpoint's shifts, unless the request says otherwise."""
    assert schedule(None) == schedule_of(
        None, component="transformer", steps=50, video_shift=12.0, audio_shift=3.0, defaults=(1.0, 1.0)
    )


def test_a_profile_of_the_other_transformer_is_refused() -> None:
    """Reference adapters do not run keyframe modes, nor the other way round."""
    with pytest.raises(ContractError, match="reference modes"):
        schedule(PROFILES["ref-turbo4-v0.1"])
    with pytest.raises(ContractError, match="keyframe modes"):
        schedule(PROFILES["turbo4-v1.0"], component="transformer_ref")


def test_profile_and_adapter_must_belong_together() -> None:
    """A published adapter implies its profile; another one is refused; a profile's adapter is not optional."""
    turbo = "minimax_h3_fl2v_turbo_4step_v1.0_768p_bf16.safetensors"
    assert choose_profile(None, turbo) is PROFILES["turbo4-v1.0"]
    assert choose_profile(None, "mine.safetensors") is None
    assert choose_profile(None, None) is None
    assert choose_profile("turbo4-v1.0", "renamed.safetensors") is PROFILES["turbo4-v1.0"]
    with pytest.raises(ContractError, match=r"belongs to profile turbo4-v1\.0"):
        choose_profile("turbo8-v1.0", turbo)
    with pytest.raises(ContractError, match="needs its adapter"):
        choose_profile("turbo8-v1.0", None)
    with pytest.raises(ContractError, match="without an adapter"):
        choose_profile("base16", "mine.safetensors")
    with pytest.raises(ContractError, match=r"choose one of base16, turbo4-v0\.1"):
        find_profile("turbo16")


def test_a_file_of_another_strength_is_refused() -> None:
    """A renamed v1.0 (scale 1) under the v1.2 profile (scale 1/16) would be 16 times too strong."""
    check_adapter(PROFILES["turbo4-v1.2"], {"a": 0.0625, "b": 0.0625}, 1.0)
    check_adapter(PROFILES["turbo4-v1.2"], {"a": 0.03125}, 0.5)
    check_adapter(None, {"a": 7.0}, 1.0)
    with pytest.raises(ContractError, match=r"scale 0\.0625 .*but b of this file has 1"):
        check_adapter(PROFILES["turbo4-v1.2"], {"a": 0.0625, "b": 1.0}, 1.0)
