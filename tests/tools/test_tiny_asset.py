"""From a run's states to the packed folder: repeatable, bounded, and only with the tokenizer that was trained."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tiny_h3 import asset
from tiny_h3.asset import pack_checkpoint, pack_run
from tiny_h3.audio_vae import AudioVaeJob, train_audio_vae
from tiny_h3.export import export_checkpoint
from tiny_h3.model import open_model
from tiny_h3.sizes import TOY
from tiny_h3.stage import Budget, save_state
from tiny_h3.text import open_presenter
from tiny_h3.video_vae import VideoVaeJob, train_video_vae
from vflash_adapters.packed.unpack import unpack_folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """States as the stages save them, at toy size and untrained; both denoisers are equal."""
    folder = tmp_path_factory.mktemp("run")
    one = Budget(steps=1)
    train_video_vae(
        VideoVaeJob(sizes=TOY, folder=folder, budget=one, batch=1, canvases=((32, 32),), statistics_clips=1)
    )
    train_audio_vae(AudioVaeJob(sizes=TOY, folder=folder, budget=one, batch=1, latents=8))
    model, _ = open_model(TOY, open_presenter(folder), None, torch.device("cpu"), compiled=False)
    for name in ("transformer", "transformer_ref"):
        save_state(folder / f"{name}.safetensors", model.everything(), {"steps": 1}, torch.bfloat16)
    return folder


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_run_packs_as_its_export_does(run_folder: Path, tmp_path: Path) -> None:
    """From the states or from the exported folder: the same bytes; unpacked, the exported folder again."""
    export_checkpoint(run_folder, tmp_path / "tiny-h3", TOY)
    byte_count = pack_run(run_folder, tmp_path / "packed", TOY)
    assert byte_count == sum(len(content) for content in contents(tmp_path / "packed").values())
    pack_checkpoint(tmp_path / "tiny-h3", tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "packed")
    unpack_folder(tmp_path / "packed", tmp_path / "unpacked")
    assert contents(tmp_path / "unpacked") == contents(tmp_path / "tiny-h3")


def test_the_vaes_pack_as_half_precision(run_folder: Path, tmp_path: Path) -> None:
    """They are exported in float32, as the release has them, but cost two bytes a value; equal denoisers cost one."""
    pack_run(run_folder, tmp_path / "packed", TOY)
    unpack_folder(tmp_path / "packed", tmp_path / "unpacked")
    sizes = {name: len(content) for name, content in contents(tmp_path / "unpacked").items()}
    vaes = sum(size for name, size in sizes.items() if "vae/" in name)
    rest = sum(size for name, size in sizes.items() if "vae/" not in name and "transformer_ref/" not in name)
    assert (tmp_path / "packed" / "payload.bin").stat().st_size < 0.65 * vaes + rest


def test_another_tokenizer_is_refused(run_folder: Path, tmp_path: Path) -> None:
    """The ids that were trained on must be the ids that are shipped."""
    shutil.copytree(run_folder, tmp_path / "run")
    tokenizer = tmp_path / "run" / "tokenizer" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("red", "rde"))
    with pytest.raises(ValueError, match="not the tokenizer that this machine learns"):
        pack_run(tmp_path / "run", tmp_path / "packed", TOY)
    assert not (tmp_path / "packed").exists()


def test_too_large_a_checkpoint_is_told(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is the package's, not the pack's."""
    monkeypatch.setattr(asset, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="more than the 1000"):
        pack_run(run_folder, tmp_path / "packed", TOY)
