"""Every training stage at toy size: it runs, writes what the product reads, and goes on from what is there."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
import torch

from tiny_h3.alias_free import fuse_activations
from tiny_h3.audio_vae import open_audio_vae
from tiny_h3.export import export_checkpoint
from tiny_h3.plan import CANVASES, RunPlan
from tiny_h3.run import run
from tiny_h3.scenes import draw_scenes
from tiny_h3.sizes import TOY
from tiny_h3.stage import Budget, Progress, SaveClock, load_state
from tiny_h3.text import open_presenter
from tiny_h3.train_denoiser import REFERENCE_PARTS
from tiny_h3.turbo import load_adapter
from tiny_h3.veda import pooled, tile_heat, two_shapes
from tiny_h3.video_vae import normalise_pixels, open_video_vae, window_latents, window_pixels
from tiny_h3.world import render_video
from vflash_adapters.attention.veda.predictor import read_predictor
from vflash_adapters.attention.veda.tiles import tile_count
from vflash_adapters.weights.lora.loader import LoraLoader
from vflash_adapters.weights.mmap_source import MmapWeights

CPU = torch.device("cpu")


def toy_plan(folder: Path) -> RunPlan:
    return RunPlan(
        folder=folder,
        seconds=1e6,
        steps=2,
        toy=True,
        clips=4,
        batch=2,
        prompts=1,
        audio_beside=False,
        canvases=((32, 64),),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run(toy_plan(folder))
    return folder


def logged(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_every_stage_runs(trained: Path) -> None:
    """All stages log, none fails, and every mode is judged."""
    lines = logged(trained)
    assert not [line for line in lines if "failed" in line]
    assert {"video-vae", "audio-vae", "denoiser", "reference", "turbo", "veda"} < {line["stage"] for line in lines}
    assert {"t2va-16", "i2va-16", "l2va-16", "fl2va-16", "ref2va-16", "t2va-turbo4"} < set(
        json.loads((trained / "judged.json").read_text())
    )
    assert (trained / "sheet-t2va-16.png").stat().st_size > 0


def test_a_run_goes_on_from_its_folder(trained: Path) -> None:
    """A second run keeps the VAEs and adds its steps to the denoiser's."""
    before = (trained / "vae.safetensors").read_bytes()
    run(toy_plan(trained))
    assert (trained / "vae.safetensors").read_bytes() == before
    assert load_state(trained / "transformer.safetensors")[1]["steps"] == 4


def test_the_reference_denoiser_shares_most_tensors(trained: Path) -> None:
    """Only the named parts are its own."""
    (base, _), (own, _) = (load_state(trained / f"{name}.safetensors") for name in ("transformer", "transformer_ref"))
    assert base.keys() == own.keys()
    changed = {name for name in base if not torch.equal(base[name], own[name])}
    assert changed
    assert changed <= {name for name in base if any(part in name for part in REFERENCE_PARTS)}


def test_the_predictor_is_in_the_published_format(trained: Path) -> None:
    """The product's strict reader accepts it, with this canvas's plan and budget."""
    predictor = read_predictor(trained / "veda.safetensors")
    assert (predictor.blocks, predictor.heads, predictor.head_dim) == (2, 2, 16)
    assert predictor.plans[0].grid == (37, 1, 2)
    assert predictor.target_budget.value == 0.5


def test_the_adapter_has_the_published_keys(trained: Path) -> None:
    """A and B of the six projections of every block, nothing else."""
    factors = load_adapter(trained / "turbo.safetensors")
    assert len(factors) == 2 * 6 * 2
    assert factors["transformer_blocks.1.ff.net.2.lora_A.weight"].shape == (32, 48)
    assert factors["transformer_blocks.0.attn.to_out.0.lora_B.weight"].shape == (32, 32)


def test_the_product_reads_the_adapter(trained: Path, tmp_path: Path) -> None:
    """The strict LoRA reader takes it whole, with the strength that the file itself states."""
    export_checkpoint(trained, tmp_path / "tiny-h3", TOY)
    base = MmapWeights(tmp_path / "tiny-h3" / "transformer").specs()
    report = LoraLoader().inspect(tmp_path / "tiny-h3" / "turbo-lora.safetensors", base, component="transformer")
    assert len(report.modules) == 2 * 6
    assert not report.unmatched
    assert {module.scale for module in report.modules} == {1.0}
    assert report.alpha_source == "metadata"


def test_the_tokenizer_joins_no_two_words(trained: Path) -> None:
    """Every word of a caption is a token of its own in both languages, so unseen pairings look like seen ones."""
    presenter = open_presenter(trained)
    assert len(presenter.prompts(["a red ball bounces on blue"])[0]) == 6
    tokens = [presenter.tokenizer.decode([i]) for i in presenter.prompts(["一个红色圆球在蓝色背景上弹跳"])[0]]
    assert tokens == ["一个", "红色", "圆球", "在", "蓝色", "背景上", "弹跳"]


def test_training_windows_are_the_decoders_own() -> None:
    """Latents and pixels of a 22-frame window are those of the whole clip encoded and decoded by the public class."""
    vae, _ = open_video_vae(TOY, None, CPU)
    pixels = normalise_pixels(render_video(draw_scenes(1, 0), 32, 32, frames=56))
    with torch.no_grad():
        whole = vae.encode(pixels).latent_dist.mode()
        named = dict(vae.named_parameters())
        mean, _ = window_latents(vae, named, pixels[:, :, 17:39])
        assert torch.allclose(mean, whole[:, :, 5:12], atol=1e-5)
        decoded = vae.decode(whole).sample
        window = window_pixels(vae, named, mean)
    assert torch.allclose(window[:, :, 5:17], decoded[:, :, 22:34], atol=1e-4)


def test_fused_activations_change_nothing() -> None:
    """The audio decoder with fused activations gives the public class's samples."""
    vae, _ = open_audio_vae(TOY, None, CPU)
    latents = torch.randn(1, 32, 6)
    with torch.no_grad():
        plain = vae.decode(latents).sample
        fuse_activations(vae, compiled=False)
        fused = vae.decode(latents).sample
    assert torch.allclose(plain, fused, atol=1e-6)


def test_tile_features_skip_padding() -> None:
    """Pooled features and heat of a partly filled tile are those of its real rows alone."""
    torch.manual_seed(3)
    q, k = torch.randn(1, 6, 2, 4), torch.randn(1, 6, 2, 4)
    tiles = torch.full((2, 128), -1)
    tiles[0, :3], tiles[1, :2] = torch.tensor([0, 1, 2]), torch.tensor([4, 5])
    features = pooled(q, tiles)
    assert torch.allclose(features[0, :, 1, :4], q[0, 4:6].mean(0))
    assert torch.allclose(features[0, :, 0, 4:8], q[0, :3].amax(0))
    assert torch.allclose(features[0, :, 0, 8:], q[0, :3].amin(0))
    probabilities = torch.softmax(torch.einsum("qhd,khd->hqk", q[0], k[0]) / 2.0, dim=-1)
    assert torch.allclose(tile_heat(q, k, tiles)[0, :, 0, 1], probabilities[:, :3, 4:6].amax((1, 2)))


@pytest.mark.parametrize("canvas", CANVASES)
def test_every_canvas_has_two_tile_shapes(canvas: tuple[int, int]) -> None:
    """Two different shapes of 128 rows that cover the canvas's grid with few tiles."""
    grid = (37, canvas[0] // 32, canvas[1] // 32)
    first, second = two_shapes(grid)
    assert first != second
    assert {math.prod(shape) for shape in (first, second)} == {128}
    assert tile_count(grid, first) <= 8


def test_a_budget_ends_by_steps_or_seconds() -> None:
    """Progress reaches one at whichever limit comes first."""
    progress = Progress(budget=Budget(steps=4))
    shares = []
    while not progress.done:
        shares.append(progress.share)
        progress.step += 1
    assert shares == [0.0, 0.25, 0.5, 0.75]
    assert Progress(budget=Budget(seconds=1e-9)).done


def test_a_state_is_saved_by_the_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each time the interval has passed, and not in between, whether or not the budget has seconds."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock, found = SaveClock(last=100.0), []
    for now[0] in (101.0, 129.0, 130.0, 131.0, 159.0, 200.0):
        found.append(clock.due())
    assert found == [False, False, True, False, False, True]
