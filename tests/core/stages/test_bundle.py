"""A bundle's body is checked for what it says, not only for its seal; and for the weights that encoded it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file, save_file

from vflash.domain.model_facts import ModelFacts, read_model_facts
from vflash.domain.packing import Keyframe, PictureBlock
from vflash.domain.plan import plan_request
from vflash.domain.request import VideoRequest
from vflash.stages.bundle import from_bundle, identities, to_bundle
from vflash.stages.encode import Conditioning, Conditions
from vflash_ports.conditioning import ConditioningBundle
from vflash_ports.errors import CheckpointError
from vflash_ports.text_encoder import TextConditioning

REQUEST = VideoRequest(prompt="A ball.", width=64, height=64, steps=2)
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def model_dir(tiny_checkpoints: Mapping[str, Path]) -> Path:
    return tiny_checkpoints["small"]


@pytest.fixture(scope="module")
def facts(model_dir: Path) -> ModelFacts:
    return read_model_facts(model_dir)


@pytest.fixture
def bundle(model_dir: Path, facts: ModelFacts) -> ConditioningBundle:
    text = TextConditioning(embeds=torch.zeros(3, facts.denoiser.text_dim), tags=torch.ones(3, dtype=torch.int64))
    conditioning = Conditioning(text=text, conditions=Conditions())
    return to_bundle(REQUEST, plan_request(REQUEST, facts), conditioning, model_dir, torch.float32)


def read(bundle: ConditioningBundle, facts: ModelFacts, model_dir: Path) -> str:
    plan, _ = from_bundle(bundle, facts, model_dir, torch.float32, None)
    return str(plan.mode)


def test_what_was_written_is_read(bundle, facts, model_dir) -> None:
    """The plan comes back from the body alone."""
    assert read(bundle, facts, model_dir) == "t2va"


PARTS = {f"{part} as {value!r}": (part, value) for part in ("request", "schedule", "conditions") for value in (None, 3)}
PARTS |= {f"identities as {value!r}": ("identities", value) for value in (None, [], "x", {})}
PARTS |= {f"conditions as {value!r}": ("conditions", value) for value in ({}, "x", ["ab"], [1], [{"kind": [1]}])}
REQUESTS = {
    f"{name} as {value!r}": (name, value)
    for name, value in (("prompt_sha256", 5), ("inputs", 5), ("inputs", [1]), ("mode", []), ("mode", "i2va"))
}
REQUESTS |= {f"mode {mode} without its conditions": ("mode", mode) for mode in ("l2va", "fl2va", "ref2va")}
CHANGES: dict[str, Change] = {
    **{how: lambda body, to=to: body.update([to]) for how, to in PARTS.items()},
    **{how: lambda body, to=to: body["request"].update([to]) for how, to in REQUESTS.items()},
    "one more identity": lambda body: body["identities"].update(more="x"),
    "a part more": lambda body: body.update(more={}),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_body_that_is_none_is_refused_as_such(bundle, facts, model_dir, how: str) -> None:
    """Sealed by whoever wrote it, all the same: never another kind of error, never another denoiser."""
    body = copy.deepcopy(dict(bundle.body))
    CHANGES[how](body)
    with pytest.raises(CheckpointError, match=r"^the bundle"):
        read(evolve(bundle, body=body), facts, model_dir)


@pytest.mark.parametrize(
    ("mode", "conditions", "legal"),
    [
        ("i2va", [Keyframe(last=False)], True),
        ("i2va", [Keyframe(last=True)], False),
        ("l2va", [Keyframe(last=True)], True),
        ("fl2va", [Keyframe(last=False), Keyframe(last=True)], True),
        ("fl2va", [Keyframe(last=True), Keyframe(last=False)], False),
        ("t2va", [PictureBlock(height=4, width=4)], False),
        ("ref2va", [PictureBlock(height=4, width=4)], True),
        ("ref2va", [PictureBlock(height=4, width=4), Keyframe(last=False)], False),
    ],
)
def test_mode_and_conditions_belong_together(bundle, facts, model_dir, mode, conditions, legal) -> None:
    """The mode chooses the denoiser; conditions of another mode would run on the wrong weights."""
    kinds = {Keyframe: "keyframe", PictureBlock: "picture"}
    body = copy.deepcopy(dict(bundle.body))
    body["request"]["mode"] = mode
    body["conditions"] = [
        {"kind": kinds[type(block)], **{name: getattr(block, name) for name in type(block).__slots__ if name[0] != "_"}}
        for block in conditions
    ]
    video = tuple(torch.zeros(1, facts.codec.latent_channels, 1, 4, 4) for _ in conditions)
    changed = evolve(bundle, body=body, video=video)
    if legal:
        assert read(changed, facts, model_dir) == mode
        return
    with pytest.raises(CheckpointError, match=f"none of mode {mode}"):
        read(changed, facts, model_dir)


@pytest.mark.parametrize("folder", ["text_encoder", "vae", "audio_vae"])
def test_weights_that_encode_are_part_of_the_identity(bundle, facts, model_dir, tmp_path: Path, folder: str) -> None:
    """Equal configs do not make an equal checkpoint: the same shapes with other values are refused."""
    other = tmp_path / "other"
    shutil.copytree(model_dir, other)
    path = min((other / folder).glob("*.safetensors"))
    save_file({name: -tensor for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match="was encoded with another encoder"):
        read(bundle, facts, other)


def test_another_denoiser_may_go_on_from_it(bundle, facts, model_dir, tmp_path: Path) -> None:
    """Nothing in a bundle comes from the denoiser's weights, so they are not its identity; nor is the folder's name."""
    other = tmp_path / "other"
    shutil.copytree(model_dir, other)
    path = min((other / "transformer").glob("*.safetensors"))
    save_file({name: -tensor for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    assert identities(other, torch.float32) == identities(model_dir, torch.float32)
    assert read(bundle, facts, other) == "t2va"
