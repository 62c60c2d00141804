"""The shipped tiny H3 in the public pipeline: the same checkpoint, the same latents in float32."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from oracle import Oracle, OracleRequest, Picture, picture
from safetensors.torch import load_file, save_file
from written_media import request_from_files

from vflash.pipeline import H3Pipeline
from vflash_adapters.packed.unpacked_cache import TINY_H3, cached_folder

SIDES = {"height": 96, "width": 128}
REQUESTS = {
    "t2va": OracleRequest(prompt="a red ball bounces on blue", evaluations=2, **SIDES),
    "fl2va": OracleRequest(
        prompt="一个绿色方块在黑色背景上向左移动",
        evaluations=2,
        first=picture(96, 128, seed=1),
        last=picture(96, 128, seed=2),
        **SIDES,
    ),
    "ref2va": OracleRequest(
        prompt="<Picture 1> grows on white",
        evaluations=2,
        references=(Picture(pixels=picture(64, 64, seed=3)),),
        **SIDES,
    ),
}
TURBO = OracleRequest(prompt="a large white star moves in a circle on grey", evaluations=4, **SIDES)
NAMES = {"video_latents": "latents", "audio_latents": "audio_latents"}


@pytest.fixture(scope="module")
def tiny_h3(shared_folder: Path) -> Path:
    return cached_folder(TINY_H3, shared_folder / "cache")


def latents(model: Path, asked: OracleRequest, folder: Path, **settings: object) -> dict[str, torch.Tensor]:
    kept = folder / "kept.safetensors"
    with H3Pipeline(model, device="cpu", dtype="float32", **settings) as pipeline:
        pipeline.generate(request_from_files(asked, folder, save_latents=kept), folder / "clip.mp4")
    return load_file(kept)


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


@pytest.mark.parametrize("mode", REQUESTS)
def test_both_denoisers_equal_the_reference(mode: str, tiny_h3: Path, oracle: Oracle, tmp_path: Path) -> None:
    """Without and with pictures, from `transformer` and from `transformer_ref`: within 1e-5 relative."""
    asked = REQUESTS[mode]
    ours = latents(tiny_h3, asked, tmp_path)
    theirs = oracle.run_all(tiny_h3, list(REQUESTS.values()))[list(REQUESTS).index(mode)]
    for name, their_name in NAMES.items():
        assert relative(ours[name], getattr(theirs, their_name)) < 1e-5, name


def test_the_turbo_adapter_equals_merged_weights(tiny_h3: Path, oracle: Oracle, tmp_path: Path) -> None:
    """The adapter as the product applies it, against the reference on weights with alpha / rank * B A added."""
    adapter = tiny_h3 / "turbo-lora.safetensors"
    ours = latents(tiny_h3, TURBO, tmp_path, adapter=str(adapter))
    theirs = oracle.run(with_merged(tiny_h3, adapter, tmp_path / "merged"), TURBO)
    (tmp_path / "plain").mkdir()
    plain = latents(tiny_h3, TURBO, tmp_path / "plain")
    for name, their_name in NAMES.items():
        assert relative(ours[name], getattr(theirs, their_name)) < 1e-5, name
        assert relative(plain[name], ours[name]) > 1e-3, f"{name}: the adapter does nothing"


def with_merged(model: Path, adapter: Path, folder: Path) -> Path:
    """The checkpoint with a float32 `transformer` that has the adapter in its weights; rank and alpha are both 32."""
    shutil.copytree(model, folder)
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    weights = {name: value.float() for name, value in load_file(file).items()}
    factors = {name: value.float() for name, value in load_file(adapter).items()}
    for name in (name.removesuffix(".lora_A.weight") for name in factors if name.endswith(".lora_A.weight")):
        weights[f"{name}.weight"] += factors[f"{name}.lora_B.weight"] @ factors[f"{name}.lora_A.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    return folder
