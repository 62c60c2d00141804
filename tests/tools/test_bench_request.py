"""The request bench runs whole on a CPU with a tiny model, through the same code as on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tool_run import run_tool

from request_bench.engines import DECODERS, EXACT, Engines
from request_bench.run import Run
from request_bench.sizes import prompt_of, released, scale_of
from request_bench.weights import RandomOpener
from vflash.domain.model_facts import DenoiserFacts, read_model_facts
from vflash.stages.inventory import weigh
from vflash_adapters.text_encoder.presentation import Presenter
from vflash_adapters.tiny_checkpoint import StoredDtype
from vflash_adapters.tiny_checkpoint.layout import write_configs
from vflash_ports.text_encoder import TextPart

CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("request")
    run_tool("tools/bench_request.py", "--output", str(folder / "r.json"), "--folder", str(folder))
    assert [path.name for path in folder.iterdir()] == ["r.json"]
    loaded: dict[str, Any] = json.loads((folder / "r.json").read_text())
    return loaded


TWICE = ("warm-up", "large", "large again", "profiled")
RUNS = {
    "exact": TWICE,
    "approximate": TWICE,
    "default": ("warm-up", "large"),
    "fast-sums": ("warm-up", "large"),
    "all-sparse": ("warm-up", "large"),
    "quick-encoder": ("warm-up", "large"),
    "swap": ("warm-up", "large"),
    "decoders": tuple(f"{decoder} {run}" for decoder in DECODERS for run in ("warm-up", "large")),
}


def test_every_request_is_accounted_for(report: dict[str, Any]) -> None:
    """Stage seconds and the rest make up the request; a clip of 120 frames came out, by the sink that is named."""
    for section, runs in RUNS.items():
        for run in runs:
            figures = report["sections"][section][run]
            assert sum(figures["seconds"].values()) == pytest.approx(figures["request_s"] - figures["loading_s"])
            assert 0 < figures["request_s"] <= figures["wall_s"]
            assert figures["loading_s"] < 0.1  # of the codec alone, which is opened empty
            assert min(figures["seconds"].values()) > 0
            mp4 = figures["mp4"]
            assert mp4["sink"] == ("file" if section in ("default", "swap") else "pipe")
            assert (mp4["encoder"], mp4["frames"]) == ("libx264", 120)
            assert mp4["preset"] == ("veryfast" if section == "quick-encoder" else "medium")


def test_latents_are_the_same_bits(report: dict[str, Any]) -> None:
    """From run to run, under the profiler, whatever decodes them, and swapped from the ring against resident."""
    sections = report["sections"]
    for section in ("exact", "approximate"):
        assert sections[section]["repeat_is_equal"]
        assert sections[section]["profiled_is_equal"]
    assert sections["default"]["large_is_exact"]
    assert sections["quick-encoder"]["large_is_all_sparse"]
    assert sections["swap"]["warm-up_is_exact"]
    assert sections["swap"]["large_is_exact"]


def test_what_ran_is_what_was_named(report: dict[str, Any]) -> None:
    """By each receipt: attention, linear, residency, placement, video decoder."""
    names = ("attention", "linear", "weight_residency", "model_placement", "video_decoder")
    quick = ("veda-meanpool", "fp8-weight-only", "resident", "together", "fused-fp8")
    found = {
        section: tuple(report["sections"][section]["large"]["backends"][name] for name in names)
        for section in RUNS
        if section != "decoders"
    }
    assert found == {
        "exact": ("sdpa", "bf16", "resident", "together", "fused"),
        "approximate": quick,
        "default": ("sdpa", "bf16", "resident", "together", "diffusers"),
        "fast-sums": quick,
        "all-sparse": quick,
        "quick-encoder": quick,
        "swap": ("sdpa", "bf16", "block-ring", "swap", "diffusers"),
    }
    sparse = {
        name: report["sections"][name]["large"]["attention"]["sparse_calls"] for name in ("approximate", "all-sparse")
    }
    assert sparse == {"approximate": 4, "all-sparse": 12}


def test_the_profile_adds_up(report: dict[str, Any]) -> None:
    """Evaluations lie in their stage, parts in their evaluation, phases in their blocks: most of it, never more."""
    for section in ("exact", "approximate"):
        profile = report["sections"][section]["profiled"]["profile"]
        for name in ("stream_over_wall", "parts_over_stream", "blocks_over_denoiser", "phases_over_blocks"):
            assert 0.2 < profile[name] <= 1.0


def test_the_peer_has_the_same_velocities(report: dict[str, Any]) -> None:
    """diffusers' transformer with the same names, values and rows: BF16 sums on one CPU thread differ by no more."""
    for size in ("small", "large"):
        figures = report["sections"]["peer"][size]
        assert max(figures["velocity_difference"].values()) < 1e-5
        assert len(figures["ours_s"]) == len(figures["diffusers_s"]) == (2 if size == "small" else 1)


def test_an_output_that_cannot_be_written_is_found_first(tmp_path: Path) -> None:
    """Before the model folder is written; the file is named."""
    with pytest.raises(FileNotFoundError, match="absent"):
        Run(scale=scale_of(CPU), folder=tmp_path, output=tmp_path / "absent" / "r.json", deadline_s=1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The released model's configs."""
    folder = tmp_path_factory.mktemp("released") / "model"
    write_configs(folder, released(), StoredDtype.MIXED)
    return folder


def test_the_full_size_is_the_released_one(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs, names and shapes of every component, without one weight: 62 GiB of transformer, 49 of encoder."""
    monkeypatch.setattr("request_bench.weights.random_slab", lambda tensors, device: torch.zeros(1))
    assert read_model_facts(model_dir).denoiser == DenoiserFacts()
    found = weigh(RandomOpener(device=CPU), model_dir, "transformer", torch.bfloat16)
    assert found.stack_read == 50 * 770_725_376
    assert found.encoder.loaded / GIB == pytest.approx(48.88, abs=0.01)
    assert found.codec.loaded / GIB == pytest.approx(5.75, abs=0.01)
    assert (found.encoder_hidden, found.encoder_ffn) == (5120, 25_600)


def test_the_prompt_is_long_enough(model_dir: Path) -> None:
    """At least the asked rows, and at most one sentence more."""
    prompt = prompt_of(model_dir, 512)
    assert 512 <= len(Presenter.read(model_dir).present([TextPart(text=prompt)]).ids) < 600


def test_the_ports_take_what_they_are_given(tmp_path: Path) -> None:
    """The container's own providers hand out the very opener: nothing copies the slab behind it."""
    scale = scale_of(CPU)
    write_configs(tmp_path / "model", scale.dimensions, StoredDtype.MIXED)
    opener = RandomOpener(device=CPU)
    container = Engines(model_dir=tmp_path / "model", opener=opener, scale=scale).container(EXACT)
    assert container.weights() is opener
    assert container.text_encoder_loader().__self__ is opener
    assert opener(tmp_path / "model" / "vae") is opener(tmp_path / "model" / "vae")
    matrix = opener(tmp_path / "model" / "text_encoder").get_tensor("model.language_model.layers.0.mlp.up_proj.weight")
    assert 0.1 < float(matrix.float().std()) < 0.3
