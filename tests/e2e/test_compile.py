"""`vflash compile` and `generate --assets`: bit-equal to the checkpoint, refused when anything is not as compiled."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from attrs import evolve
from exports import AdapterFile, peft_keys
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from vflash.cli import app
from vflash.container import Container
from vflash.domain import profiles
from vflash.domain.packing import Keyframe, PictureBlock, SoundBlock
from vflash.domain.plan import plan_request
from vflash.domain.profiles import AdapterIdentity, Profile
from vflash.domain.request import VideoRequest
from vflash.settings import Settings
from vflash.stages.denoise import denoise
from vflash.stages.encode import Conditioning, Conditions
from vflash_adapters.assets.safetensors_store import SafetensorsAssets
from vflash_adapters.attention.sdpa import sdpa_attention
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import CheckpointError, ContractError
from vflash_ports.observer import SilentObserver
from vflash_ports.text_encoder import TextConditioning

MACHINE = ["--device", "cpu", "--dtype", "float32"]
REQUEST = ["--prompt", "rain", "--width", 64, "--height", 64, "--json"]


def vflash(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result


@pytest.fixture(autouse=True)
def _tiny_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = AdapterIdentity(file_names=("tiny_turbo.safetensors",), rank=4, alpha=2.0)
    tiny = {
        "tiny2": Profile(name="tiny2", component="transformer", evaluations=2, video_shift=6.0, adapter=identity),
        "tiny1": Profile(name="tiny1", component="transformer", evaluations=1),
        "tiny-ref": Profile(name="tiny-ref", component="transformer_ref", evaluations=2),
    }
    monkeypatch.setattr(profiles, "PROFILES", {**profiles.PROFILES, **tiny})


@pytest.fixture(scope="module")
def model(tiny_checkpoints) -> Path:
    return tiny_checkpoints["small"]


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blocks, AdaLN, final norm, refiner and projections: every place a residual can be."""
    generator = torch.Generator().manual_seed(6)
    pairs = {}
    for name, spec in MmapWeights(model / "transformer").specs().items():
        if len(spec.shape) == 2:
            out, width = spec.shape
            down, up = (torch.randn(shape, generator=generator) for shape in ((4, width), (out, 4)))
            pairs[name.removesuffix(".weight")] = {"A": down / width**0.5, "B": up * 0.1}
    folder = tmp_path_factory.mktemp("adapter")
    return AdapterFile(peft_keys(pairs), metadata={"alpha": "2"}, file_name="tiny_turbo.safetensors").write(folder)


def compile_into(folder: Path, model: Path, *options: object) -> dict:
    words = ["compile", "--model", model, "--output", folder, *MACHINE, *options, "--json"]
    return json.loads(vflash(*words).stdout)


def generate(model: Path, output: Path, *options: object) -> tuple[dict, dict[str, torch.Tensor]]:
    kept = output.with_suffix(".safetensors")
    words = ["generate", "--model", model, *REQUEST, "--output", output, "--save-latents", kept, *options]
    return json.loads(vflash(*words).stdout), load_file(kept)


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def latents(model: Path, conditions: Conditions, **settings: object) -> dict[str, torch.Tensor]:
    """The denoising of one request under these settings, without encoder and VAEs."""
    container = Container(settings=Settings(model_dir=model, device="cpu", dtype="float32", **settings))
    backends = container.backends()
    folder = backends.profile.component
    facts = container.model_facts()(folder)
    plan = evolve(
        plan_request(VideoRequest(prompt="rain", width=64, height=96, steps=1), facts),
        schedule=backends.profile.schedule,
    )
    embeds = torch.randn(9, facts.denoiser.text_dim, generator=torch.Generator().manual_seed(1))
    text = TextConditioning(embeds=embeds, tags=torch.ones(9, dtype=torch.int64))
    backends.check_component(model / folder, facts.denoiser)
    with backends.open_denoiser(model / folder, facts.denoiser) as denoiser:
        conditioning = Conditioning(text=text, conditions=conditions)
        found, _ = denoise(plan, conditioning, denoiser, sdpa_attention("sdpa"), SilentObserver())
    return {"video": found.video, "audio": found.audio}


KEYFRAME = Conditions(blocks=(Keyframe(last=False),), video=(torch.ones(1, 24, 1, 6, 4),))
PICTURE = Conditions(blocks=(PictureBlock(height=4, width=4),), video=(torch.ones(1, 24, 1, 4, 4),))
SOUND = Conditions(
    blocks=(PictureBlock(height=4, width=4), SoundBlock(latents=5)),
    video=(torch.ones(1, 24, 1, 4, 4),),
    audio=(torch.ones(2, 5, 32),),
)


@pytest.mark.parametrize(("reading", "residency"), [("mmap", "resident"), ("buffered", "block-ring")])
def test_assets_are_bit_equal_to_the_checkpoint(
    model: Path, adapter: Path, tmp_path: Path, reading: str, residency: str
) -> None:
    """With an adapter in every place, text and keyframe requests give the same latents from either."""
    assert compile_into(tmp_path / "assets", model, "--adapter", adapter)["profile"] == "tiny2"
    chosen = {"weight_reading": reading, "weight_residency": residency}
    for conditions in (Conditions(), KEYFRAME):
        expected = latents(model, conditions, adapter=adapter, **chosen)
        assert_equal(latents(model, conditions, assets=tmp_path / "assets", **chosen), expected)
        assert not torch.equal(expected["video"], latents(model, conditions, profile="tiny1")["video"])


def test_reference_assets_are_bit_equal(model: Path, tmp_path: Path) -> None:
    """The other transformer, with pictures alone and with reference sound (one timestep more)."""
    compile_into(tmp_path / "assets", model, "--profile", "tiny-ref")
    for conditions in (PICTURE, SOUND):
        expected = latents(model, conditions, profile="tiny-ref")
        assert_equal(latents(model, conditions, assets=tmp_path / "assets"), expected)


def test_quantised_assets_are_bit_equal(model: Path, tmp_path: Path) -> None:
    """FP8 codes and scales are packed once, while compiling."""
    compile_into(tmp_path / "assets", model, "--profile", "tiny1", "--linear", "fp8-weight-only")
    fp8 = {"linear": "fp8-weight-only"}
    expected = latents(model, Conditions(), profile="tiny1", **fp8)
    assert_equal(latents(model, Conditions(), assets=tmp_path / "assets", **fp8), expected)


def test_the_whole_pipeline_runs_from_assets(model: Path, adapter: Path, tmp_path: Path) -> None:
    """Through the command line: equal latents, and the same adapter, schedule and profile in the receipt."""
    compile_into(tmp_path / "assets", model, "--adapter", adapter)
    receipt, expected = generate(model, tmp_path / "a.mp4", *MACHINE, "--adapter", adapter)
    compiled, found = generate(model, tmp_path / "b.mp4", *MACHINE, "--assets", tmp_path / "assets")
    assert_equal(found, expected)
    assert all(compiled[name] == receipt[name] for name in ("adapter", "schedule", "profile"))
    assert compiled["assets"]["target"] == "cpu"
    assert receipt["assets"] is None


def test_no_adaln_weight_is_stored(model: Path, tmp_path: Path) -> None:
    """Blocks are packed, tables finished, and the transformer's own shards are not needed any more."""
    compile_into(tmp_path / "assets", model, "--profile", "tiny1")
    names = MmapWeights(tmp_path / "assets" / "assets.safetensors.index.json").specs()
    assert not [name for name in names if "adaln" in name or "time_embedder" in name or "norm_out.linear" in name]
    assert names["tables.0.blocks"].shape[1:4] == (1, 5, 6)
    shutil.copytree(model, tmp_path / "model")
    for shard in (tmp_path / "model" / "transformer").glob("*.safetensors*"):
        shard.unlink()
    assert latents(tmp_path / "model", Conditions(), assets=tmp_path / "assets")["video"].isfinite().all()


@pytest.fixture(scope="module")
def assets(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once; tests that alter it work on a copy."""
    folder = tmp_path_factory.mktemp("assets") / "base16"
    compile_into(folder, model, "--profile", "base16")
    return folder


def test_what_was_measured_is_recorded_and_nothing_else(model: Path, tmp_path: Path) -> None:
    """Content hashes are there by default; left out, the record says so and holds no digest."""
    measured = compile_into(tmp_path / "a", model, "--profile", "tiny1")["source"]
    skipped = compile_into(tmp_path / "b", model, "--profile", "tiny1", "--no-verify-content-hashes")["source"]
    assert measured["content_hashes"] == "measured"
    assert all(len(file["sha256"]) == 64 for file in measured["files"])
    assert skipped["content_hashes"] == "not measured"
    assert all(file["sha256"] is None and len(file["header_sha256"]) == 64 for file in skipped["files"])
    kept = SafetensorsAssets().open(tmp_path / "b")
    assert kept.body["source"] == skipped


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "cpu", "--dtype", "bfloat16"], "compiled for dtype float32"),
        ([*MACHINE, "--linear", "fp8-weight-only"], "compiled for linear bf16"),
        ([*MACHINE, "--profile", "turbo4-v1.0"], r"are for profile base16"),
        ([*MACHINE, "--steps", 4], "profile base16 runs steps 16"),
        ([*MACHINE, "--adapter", "x.safetensors"], "assets hold their adapter"),
        ([*MACHINE, "--qkv-order", "grouped"], "assets hold their adapter"),
    ],
)
def test_settings_that_contradict_the_assets_are_refused(
    model: Path, assets: Path, tmp_path: Path, options, words
) -> None:
    """Precision, linear, profile, steps and adapter are what was compiled."""
    with pytest.raises(ContractError, match=words):
        generate(model, tmp_path / "a.mp4", *options, "--assets", assets)


def test_another_component_or_model_is_refused(model: Path, assets: Path, tmp_path: Path, tiny_checkpoints) -> None:
    """Reference requests need assets of the other transformer; another model's config does not fit."""
    Image.new("RGB", (64, 64)).save(tmp_path / "cat.png")
    with pytest.raises(ContractError, match=r"hold transformer, but this request runs transformer_ref"):
        generate(model, tmp_path / "a.mp4", *MACHINE, "--reference", tmp_path / "cat.png", "--assets", assets)
    with pytest.raises(ContractError, match="other dimensions"):
        generate(tiny_checkpoints["other"], tmp_path / "a.mp4", *MACHINE, "--assets", assets)


def test_moved_and_changed_files_are_noticed_without_hashing(model: Path, assets: Path, tmp_path: Path) -> None:
    """A copy voids the receipt until hashes are compared and it is renewed; a changed byte is never renewed."""
    shutil.copytree(assets, tmp_path / "copy", copy_function=shutil.copy2)
    with pytest.raises(CheckpointError, match="--renew"):
        generate(model, tmp_path / "a.mp4", *MACHINE, "--assets", tmp_path / "copy")
    assert json.loads(vflash("assets", tmp_path / "copy", "--json").stdout)["receipt"] == "kept"
    vflash("assets", tmp_path / "copy", "--renew")
    SafetensorsAssets().open(tmp_path / "copy")
    block = tmp_path / "copy" / "block-001.safetensors"
    stamp = block.stat()
    with block.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    os.utime(block, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(CheckpointError, match="block-001"):
        generate(model, tmp_path / "c.mp4", *MACHINE, "--assets", tmp_path / "copy")
    with pytest.raises(CheckpointError, match=r"block-001.*content differs"):
        vflash("assets", tmp_path / "copy", "--renew")


@pytest.mark.parametrize(
    "name", ["assets.json", "receipt.json", "block-000.safetensors", "assets.safetensors.index.json"]
)
def test_missing_and_cut_files_are_refused(assets: Path, tmp_path: Path, name: str) -> None:
    """Every file of the folder is needed whole."""
    shutil.copytree(assets, tmp_path / "copy")
    vflash("assets", tmp_path / "copy", "--renew")
    path = tmp_path / "copy" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError):
        SafetensorsAssets().open(tmp_path / "copy")
    path.unlink()
    with pytest.raises(CheckpointError):
        SafetensorsAssets().open(tmp_path / "copy")


def test_compile_needs_a_profile_and_a_free_name(model: Path, tmp_path: Path) -> None:
    """No schedule, no tables; and an existing folder is left alone. A failure leaves nothing."""
    with pytest.raises(ContractError, match="name a profile"):
        compile_into(tmp_path / "a", model)
    pair = {"A": torch.ones(1, 2), "B": torch.ones(2, 1)}
    wrong = AdapterFile(peft_keys({"blocks.9.x": pair}), {"alpha": "1"}).write(tmp_path / "w")
    with pytest.raises(CheckpointError, match="only 0 of 1 pairs"):
        compile_into(tmp_path / "a", model, "--profile", "tiny2", "--adapter", wrong)
    assert not [path for path in tmp_path.iterdir() if path.name != "w"]
    (tmp_path / "a").mkdir()
    with pytest.raises(ContractError, match="exists already"):
        compile_into(tmp_path / "a", model, "--profile", "tiny1")


@pytest.mark.parametrize("stored", ["assets", "fp8 folder"])
def test_a_plan_offers_only_linears_that_can_run_what_is_stored(model: Path, tmp_path: Path, stored: str) -> None:
    """Assets are of one linear, an FP8 folder is of two: another is an obstacle, and is never advised."""
    if stored == "assets":
        machine = ["--dtype", "bfloat16", "--linear", "fp8-weight-only"]
        compile_into(tmp_path / "assets", model, "--profile", "tiny1", *machine)
        options: dict[str, object] = {"model_dir": model, "assets": tmp_path / "assets"}
        right, told = {"fp8-weight-only"}, "these assets were compiled for linear fp8-weight-only"
    else:
        vflash("quantize", "--model", model, "--output", tmp_path / "fp8", "--text-encoder-layers", "none")
        options, right, told = (
            {"model_dir": tmp_path / "fp8"},
            {"fp8-weight-only", "w8a8"},
            "cannot run quantised weights",
        )
    settings = Settings(device="cpu", linear="fp8-weight-only", host_memory_gib=1, **options)
    with Container(settings=settings).pipeline() as engine:
        found = engine.plan(VideoRequest(prompt="rain", width=64, height=64))
    assert not found.chosen.fits
    for choice in found.choices:
        refused = any(told in obstacle for obstacle in choice.obstacles)
        assert refused == (choice.options.linear not in right), choice.obstacles
    assert not any(name in found.advice for name in {"bf16", "w8a8"} - right)
