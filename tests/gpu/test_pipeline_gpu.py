"""Whole requests of a tiny model on a CUDA device: however weights are read, held and placed, the bits are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from vflash.cli import app
from vflash.pipeline import H3Pipeline, VideoRequest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TWO_REQUESTS = ({"seed": 1, "steps": 2}, {"seed": 2, "steps": 2})


@pytest.fixture(scope="module")
def model(tiny_checkpoints: Mapping[str, Path]) -> Path:
    return tiny_checkpoints["small"]


@pytest.fixture(scope="module")
def sidecar(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zstandard")
    folder = tmp_path_factory.mktemp("sidecar") / "sidecar"
    vflash("sidecar", "prepare", model, folder, "--workers", 2)
    return folder


def vflash(*words: object) -> None:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception


def latents(kept: Path) -> list[torch.Tensor]:
    return [tensor for _, tensor in sorted(load_file(kept).items())]


def generated(
    model: Path, folder: Path, requests: Sequence[Mapping[str, Any]] = TWO_REQUESTS, **settings: Any
) -> list[torch.Tensor]:
    """Latents of the requests of one pipeline: a second one meets everything warm."""
    found = []
    with H3Pipeline(model, device="cuda", **settings) as pipeline:
        for number, fields in enumerate(requests):
            kept = folder / f"{number}.safetensors"
            request = VideoRequest(prompt="rain", width=64, height=64, save_latents=kept, **fields)
            pipeline.generate(request, folder / f"{number}.mp4")
            found += latents(kept)
    return found


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.fixture(scope="module")
def expected(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    folder = tmp_path_factory.mktemp("resident")
    found = generated(model, folder, weight_residency="resident")
    half = len(found) // 2
    assert not any(torch.equal(one, other) for one, other in zip(found[:half], found[half:], strict=True))
    return found


@pytest.mark.parametrize(
    ("reading", "residency", "placement"),
    [
        ("mmap", "block-ring", "together"),
        ("buffered", "block-ring", "together"),
        ("sidecar", "block-ring", "together"),
        ("buffered", "resident", "swap"),
        ("sidecar", "resident", "swap"),
        ("mmap", "block-ring", "swap"),
    ],
)
def test_where_weights_come_from_and_lie_changes_no_bit(
    model: Path,
    expected: list[torch.Tensor],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    reading: str,
    residency: str,
    placement: str,
) -> None:
    """Against mapped weights that are all resident; the ring's pinned arena is filled by every reader."""
    chosen: dict[str, Any] = {"weight_residency": residency, "model_placement": placement, "weight_reading": reading}
    if reading == "sidecar":
        chosen |= {"weight_sidecar": request.getfixturevalue("sidecar"), "sidecar_merge": "numpy"}
    assert_same(generated(model, tmp_path, **chosen), expected)


@pytest.mark.parametrize("linear", ["bf16", "fp8-weight-only", "w8a8"])
@pytest.mark.parametrize("residency", ["resident", "block-ring"])
def test_compiled_assets_change_no_bit(model: Path, tmp_path: Path, linear: str, residency: str) -> None:
    """Compiled on this device for this linear; blocks are packed once, AdaLN tables are finished."""
    assets = tmp_path / "assets"
    vflash("compile", "--model", model, "--output", assets, "--profile", "base16", "--linear", linear)
    chosen = {"linear": linear, "weight_residency": residency}
    straight, compiled = tmp_path / "straight", tmp_path / "compiled"
    for folder in (straight, compiled):
        folder.mkdir()
    # A profile brings its own evaluations.
    found = generated(model, straight, [{}], profile="base16", **chosen)
    assert_same(generated(model, compiled, [{}], assets=assets, **chosen), found)
