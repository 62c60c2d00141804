"""Adapters and profiles through the whole pipeline: what runs, what the receipt says, what is refused and when."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from exports import AdapterFile, Delta, export_adapters, peft_keys
from safetensors.torch import load_file
from typer.testing import CliRunner

from vflash.cli import app
from vflash.domain import profiles
from vflash.domain.profiles import AdapterIdentity, Profile
from vflash.pipeline import H3Pipeline, VideoRequest
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import CheckpointError, ContractError

SMALL = ["--prompt", "rain", "--width", 64, "--height", 64, "--device", "cpu", "--dtype", "float32", "--json"]


@pytest.fixture(scope="module")
def model(tiny_checkpoints) -> Path:
    return tiny_checkpoints["small"]


@pytest.fixture(scope="module")
def delta(model: Path) -> Delta:
    generator = torch.Generator().manual_seed(4)
    made: Delta = {}
    specs = MmapWeights(model / "transformer").specs()
    for name in ("transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.to_k", "transformer_blocks.0.attn.to_v",
                 "transformer_blocks.1.ff.net.0.proj", "norm_out.linear"):  # fmt: skip
        out, width = specs[f"{name}.weight"].shape
        down = torch.randn(4, width, generator=generator) / width**0.5
        if name.endswith((".to_k", ".to_v")):
            down = made[name[:-1] + "q"][0]
        made[name] = down, torch.randn(out, 4, generator=generator) * 0.2
    return made


def generate(model: Path, output: Path, *options: object) -> dict:
    words = ["generate", "--model", model, *SMALL, "--output", output, *options]
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout)


def test_the_receipt_names_the_adapter_and_every_scale(model: Path, delta: Delta, tmp_path: Path) -> None:
    """Family, source of alpha, matched and unmatched, scale per module; and the latents do change."""
    path = export_adapters(delta, heads=4, alpha=2.0)["lightx2v-comfyui"].write(tmp_path)
    latents = {}
    for name, options in {
        "base": [],
        "adapted": ["--adapter", path],
        "half": ["--adapter", path, "--adapter-strength", 0.5],
    }.items():
        kept = tmp_path / f"{name}.safetensors"
        receipt = generate(model, tmp_path / f"{name}.mp4", "--steps", 2, "--save-latents", kept, *options)
        latents[name] = load_file(kept)["video_latents"]
        if name == "base":
            assert receipt["adapter"] is None
            continue
        adapter = receipt["adapter"]
        assert (adapter["family"], adapter["alpha_source"], adapter["path"]) == ("comfyui/native", "per-key", path.name)
        assert (adapter["matched"], adapter["unmatched"]) == (3, [])
        strength = 0.5 if name == "half" else 1.0
        scales = {module["stored_name"]: module["scale"] for module in adapter["modules"]}
        assert scales == dict.fromkeys(scales, 2.0 / 4 * strength)
        assert sorted(target for module in adapter["modules"] for target in module["targets"]) == sorted(delta)
    change, half = (latents[name] - latents["base"] for name in ("adapted", "half"))
    assert 0.2 < float(half.norm() / change.norm()) < 0.8


@pytest.fixture
def tiny_profile(monkeypatch: pytest.MonkeyPatch) -> Profile:
    """A profile whose published adapter has rank 4."""
    identity = AdapterIdentity(file_names=("tiny_turbo.safetensors",), rank=4, alpha=2.0)
    profile = Profile(name="tiny2", component="transformer", evaluations=2, video_shift=6.0, adapter=identity)
    monkeypatch.setattr(profiles, "PROFILES", {**profiles.PROFILES, "tiny2": profile})
    return profile


def turbo(delta: Delta, folder: Path, alpha: float, name: str = "tiny_turbo.safetensors") -> Path:
    pairs = {module: {"A": down, "B": up} for module, (down, up) in delta.items()}
    return AdapterFile(peft_keys(pairs), metadata={"alpha": f"{alpha}"}, file_name=name).write(folder)


def test_a_published_adapter_brings_its_schedule(model: Path, delta: Delta, tiny_profile, tmp_path: Path) -> None:
    """Evaluations and shifts are the profile's without being asked for, and the receipt names it."""
    receipt = generate(model, tmp_path / "a.mp4", "--adapter", turbo(delta, tmp_path, 2.0))
    assert receipt["profile"] == "tiny2"
    assert receipt["schedule"] == {"evaluations": 2, "video_shift": 6.0, "audio_shift": 3.0}
    again = generate(
        model, tmp_path / "b.mp4", "--adapter", turbo(delta, tmp_path, 2.0), "--steps", 2, "--profile", "tiny2"
    )
    assert again["schedule"] == receipt["schedule"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--steps", 4], "profile tiny2 runs steps 2, got 4"),
        (["--video-shift", 12], "profile tiny2 runs video shift 6, got 12"),
        (["--audio-shift", 6], "profile tiny2 runs audio shift 3, got 6"),
        (["--profile", "base16"], "belongs to profile tiny2"),
        (["--adapter-alpha", 8], "contradicts"),
    ],
)
def test_contradictions_are_refused(
    model: Path, delta: Delta, tiny_profile, tmp_path: Path, options, words: str
) -> None:
    """Steps, shifts, profile and alpha that are not the adapter's."""
    with pytest.raises(ContractError, match=words):
        generate(model, tmp_path / "a.mp4", "--adapter", turbo(delta, tmp_path, 2.0), *options)
    assert not (tmp_path / "a.mp4").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--profile", "turbo8"], "profile 'turbo8' is unknown"),
        (["--profile", "turbo8-v1.0"], "needs its adapter"),
        (["--adapter-alpha", 8], "adapter_alpha is given but no adapter"),
        (["--adapter-strength", 0, "--adapter", "x.safetensors"], "adapter_strength: must be a positive number"),
        (["--adapter-alpha", "often", "--adapter", "x.safetensors"], "adapter_alpha: must be a positive number"),
        (["--adapter", "gone.safetensors"], "no such file"),
    ],
)
def test_mistakes_name_their_option(model: Path, tmp_path: Path, options, words: str) -> None:
    """Unknown profiles, options without an adapter, nonsense numbers, missing files."""
    with pytest.raises(ContractError, match=words):
        generate(model, tmp_path / "a.mp4", *options)


def test_adapters_are_refused_before_anything_loads(model: Path, delta: Delta, tmp_path: Path, tiny_profile) -> None:
    """No alpha, another base, the wrong strength: all said before the text encoder is asked for."""

    def never(folder: Path) -> object:
        raise AssertionError("the text encoder was loaded")

    pairs = {module: {"A": down, "B": up} for module, (down, up) in delta.items()}
    wide = {"transformer_blocks.0.attn.to_out.0": {"A": torch.ones(2, 4096), "B": torch.ones(4096, 2)}}
    cases = {
        "--adapter-alpha": AdapterFile(peft_keys(pairs), file_name="a.safetensors").write(tmp_path),
        "only 0 of 1 pairs fit": AdapterFile(peft_keys(wide), file_name="b.safetensors").write(tmp_path),
        "runs its adapter at scale 0.5": turbo(delta, tmp_path, 32.0),
    }
    for words, path in cases.items():
        with (
            H3Pipeline(model, device="cpu", dtype="float32", adapter=path, text_encoder_loader=never) as pipeline,
            pytest.raises((CheckpointError, ContractError), match=words),
        ):
            pipeline.generate(VideoRequest(prompt="rain", width=64, height=64), tmp_path / "x.mp4")
        assert not (tmp_path / "x.mp4").exists()


def test_a_healthy_pipeline_stays_healthy(model: Path, delta: Delta, tiny_profile, tmp_path: Path) -> None:
    """A refused request does not retire the pipeline that runs the adapter."""
    with H3Pipeline(model, device="cpu", dtype="float32", adapter=turbo(delta, tmp_path, 2.0)) as pipeline:
        with pytest.raises(ContractError, match="runs steps 2"):
            pipeline.generate(VideoRequest(prompt="rain", width=64, height=64, steps=9), tmp_path / "x.mp4")
        result = pipeline.generate(VideoRequest(prompt="rain", width=64, height=64), tmp_path / "x.mp4")
    assert result.receipt["adapter"]["matched"] == len(delta)


def plan(model: Path, *options: object) -> dict:
    words = ["plan", "--model", model, *SMALL, *options]
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return json.loads(result.stdout)


def test_a_plan_counts_the_adapter_and_refuses_what_generate_would(model: Path, delta: Delta, tmp_path: Path) -> None:
    """The same options as `generate`: alpha, strength, row order, chunks; a file that does not fit is named."""
    path = export_adapters(delta, heads=4, alpha=2.0)["lightx2v-comfyui"].write(tmp_path)
    base, adapted = (plan(model, *options)["chosen"] for options in ((), ("--adapter", path)))
    more = adapted["stack_bytes_on_device"] - base["stack_bytes_on_device"]
    assert more == 2 * (path.stat().st_size // 3)
    silent = AdapterFile(peft_keys({name: {"A": down, "B": up} for name, (down, up) in delta.items()})).write(tmp_path)
    with pytest.raises(CheckpointError, match="adapter-alpha"):
        plan(model, "--adapter", silent)
    plan(model, "--adapter", silent, "--adapter-alpha", "rank", "--adapter-strength", 0.5)
    with pytest.raises(ContractError, match="veda_predictor"):
        plan(model, "--attention-backend", "veda")
    missing = ["--attention-backend", "veda", "--veda-predictor", tmp_path / "none.safetensors"]
    with pytest.raises(ContractError, match=r"none\.safetensors"):
        plan(model, *missing, "--veda-dense-edge-layers", 0)
