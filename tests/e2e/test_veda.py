"""Veda in whole requests: named in the receipt with its counts, refused before any weight is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import MemoryLatentStore
from typer.testing import CliRunner

from make_tiny_predictor import write_predictor
from vflash.cli import app
from vflash.engine import Engine
from vflash.pipeline import VideoRequest
from vflash.settings import Settings
from vflash_ports.errors import CheckpointError, ContractError, UnsupportedError

BLOCKS, HEADS, HEAD_DIM = 3, 4, 16
GRID = (37, 4, 6)
Make = Callable[..., Engine]


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("veda") / "predictor.safetensors"
    write_predictor(path, blocks=BLOCKS, heads=HEADS, head_dim=HEAD_DIM, grids=[GRID])
    return str(path)


@pytest.fixture
def larger(ask: Callable[..., VideoRequest]) -> VideoRequest:
    """192 x 128: the predictor's own grid, 888 video rows."""
    return ask(width=192, height=128)


def run(make: Make, request: VideoRequest, folder: Path, **options: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    store = MemoryLatentStore()
    result = make(latent_store=store, **options).generate(request, folder / f"{len(list(folder.iterdir()))}.mp4")
    return next(iter(store.kept.values())).video, result.receipt


def test_the_receipt_says_what_was_sparse(make: Make, larger: VideoRequest, predictor: str, tmp_path: Path) -> None:
    """Two evaluations of three blocks, the middle one sparse; budgets, plan and fractions are there."""
    options = {"attention_backend": "veda", "veda_predictor": predictor, "veda_dense_edge_layers": 1}
    _, receipt = run(make, larger, tmp_path, **options)
    attention = receipt["attention"]
    assert (attention["backend"], attention["exact"]) == ("veda", False)
    assert (attention["sparse_calls"], attention["dense_calls"]) == (2, 4)
    details = attention["details"]
    assert (details["kernels"], details["dense_backend"], details["dense_layers"]) == ("reference", "sdpa", [0, 2])
    assert (details["plan"], details["plan_exact"]) == ("tiny_t37_4x6", True)
    assert details["target_budget"] == "ratio=0.1"
    assert 0 < details["kept_fraction"] < 0.3
    assert details["compute_fraction"] > 1  # so small a grid is mostly padding and global rows
    assert details["predictor"] == predictor


def test_the_plan_counts_the_projections(make: Make, larger: VideoRequest, predictor: str) -> None:
    """One sparse block of four heads of 16: 12,288 bytes more in every stage, and the plan has read no tensor."""
    exact, sparse = (
        make(attention_backend=name, **options).plan(larger)
        for name, options in {
            "sdpa": {},
            "veda": {"veda_predictor": predictor, "veda_dense_edge_layers": 1},
        }.items()
    )
    assert sparse.work.attention_bytes == 2 * HEADS * 3 * HEAD_DIM * HEAD_DIM * 2 == 12_288
    for choice, other in zip(exact.choices, sparse.choices, strict=True):
        assert other.stages == {name: size + 12_288 for name, size in choice.stages.items()}


def test_sparse_attention_changes_the_clip_and_repeats_itself(
    make: Make, larger: VideoRequest, predictor: str, tmp_path: Path
) -> None:
    """Near the exact latents; two runs are bit-equal; the predictor-free baseline is another approximation."""
    edge = {"veda_dense_edge_layers": 1}
    exact, _ = run(make, larger, tmp_path)
    veda = {"attention_backend": "veda", "veda_predictor": predictor, **edge}
    first, second = (run(make, larger, tmp_path, **veda)[0] for _ in range(2))
    free, receipt = run(make, larger, tmp_path, attention_backend="veda-meanpool", **edge)
    assert torch.equal(first, second)
    assert 0 < (first - exact).norm() / exact.norm() < 0.5
    assert not torch.equal(first, free)
    assert receipt["attention"]["details"]["predictor"] is None


def test_a_budget_of_all_tiles_is_exact(make: Make, larger: VideoRequest, tmp_path: Path) -> None:
    """And the receipt says so."""
    options = {"attention_backend": "veda-meanpool", "veda_dense_edge_layers": 1, "veda_target_budget": "ratio=1"}
    all_kept, receipt = run(make, larger, tmp_path, **options)
    assert torch.equal(all_kept, run(make, larger, tmp_path)[0])
    assert (receipt["attention"]["exact"], receipt["attention"]["sparse_calls"]) == (True, 0)


class UnopenedEncoders:
    """The first thing a request would load."""

    def open(self, model_dir: Path, **_: Any) -> None:
        pytest.fail("weights were read")


def refused(make: Make, request: VideoRequest, folder: Path, **options: Any) -> None:
    engine = make(text_encoder=UnopenedEncoders(), veda_dense_edge_layers=options.pop("edge", 1), **options)
    engine.generate(request, folder / "clip.mp4")


FAULTS: dict[str, tuple[dict[str, Any], type[ContractError], str]] = {
    "no such predictor": (
        {"attention_backend": "veda", "veda_predictor": "absent.safetensors"},
        CheckpointError,
        "absent.safetensors is not a file.*veda-meanpool",
    ),
    "too many edge blocks": (
        {"attention_backend": "veda-meanpool", "edge": 3},
        ContractError,
        "veda_dense_edge_layers=3 leaves no sparse block of 3; give 0 to 1",
    ),
    "a GPU's kernels": (
        {"attention_backend": "veda-meanpool", "veda_kernels": "hopper"},
        UnsupportedError,
        "'hopper' run on CUDA.*veda_kernels='auto'",
    ),
    "a GPU's dense backend": (
        {"attention_backend": "veda-meanpool", "veda_dense_backend": "sdpa-cudnn"},
        UnsupportedError,
        "'sdpa-cudnn' runs on cuda",
    ),
    "another GPU's dense backend": (
        {"attention_backend": "veda-meanpool", "veda_dense_backend": "hopper"},
        UnsupportedError,
        "'hopper' runs on cuda.*on a CPU 'sdpa'",
    ),
    "a reference budget without use": (
        {"attention_backend": "veda-meanpool", "veda_reference_budget": "tiles=32"},
        ContractError,
        "references stay dense",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_unusable_choice_stops_before_weights(
    make: Make, ask: Callable[..., VideoRequest], tmp_path: Path, fault: str
) -> None:
    """With the cure; nothing is loaded, and nothing falls back to exact attention."""
    options, error, message = FAULTS[fault]
    with pytest.raises(error, match=message):
        refused(make, ask(), tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_another_models_predictor_is_refused(make: Make, ask: Callable[..., VideoRequest], tmp_path: Path) -> None:
    """Both sizes are in the message."""
    path = tmp_path / "other.safetensors"
    write_predictor(path, blocks=BLOCKS, heads=HEADS + 1, head_dim=HEAD_DIM, grids=[GRID])
    with pytest.raises(ContractError, match=r"other\.safetensors was trained for .*3, 5, 16.*this model has .3, 4, 16"):
        refused(make, ask(), tmp_path, attention_backend="veda", veda_predictor=str(path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_backend": "veda"}, "go together"),
        ({"veda_predictor": "p"}, "go together"),
        ({"attention_backend": "veda-meanpool", "veda_predictor": "p"}, "go together"),
        ({"veda_target_budget": "ratio=0.1"}, "veda_target_budget is given, but attention_backend is auto"),
        ({"veda_dense_steps": [0]}, "veda_dense_steps is given"),
        ({"attention_backend": "veda-meanpool", "veda_dense_steps": [-1]}, "veda_dense_steps: must be a list"),
        ({"attention_backend": "veda-meanpool", "veda_dense_steps": 1}, "veda_dense_steps: must be a list"),
        ({"attention_backend": "veda-meanpool", "veda_target_budget": "0.1"}, "veda_target_budget: must be ratio=R"),
        ({"attention_backend": "veda-meanpool", "veda_target_budget": "ratio=0"}, "must be ratio=R"),
        ({"attention_backend": "veda-meanpool", "veda_target_budget": "ratio=1.5"}, "must be ratio=R"),
        (
            {"attention_backend": "veda-meanpool", "veda_dense_edge_layers": -1},
            "veda_dense_edge_layers must be between",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_errors(options: dict[str, Any], message: str) -> None:
    """Found from the settings alone, before torch is imported."""
    with pytest.raises(ContractError, match=message):
        Settings(model_dir="model", **options)


def test_the_command_line_has_the_same_names(checkpoint: Path, predictor: str, tmp_path: Path) -> None:
    """One command, one clip, and the receipt on stdout."""
    arguments = [
        "generate", "--model", str(checkpoint), "--prompt", "Rain.", "--width", "192", "--height", "128",
        "--steps", "1", "--device", "cpu", "--dtype", "float32", "--attention-backend", "veda",
        "--veda-predictor", predictor, "--veda-dense-edge-layers", "1", "--json",
        "--output", str(tmp_path / "rain.mp4"),
    ]  # fmt: skip
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert '"sparse_calls": 1' in done.stdout
