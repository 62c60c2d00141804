"""Content hashes: a flipped byte in a shard of the right size is found, by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vflash_adapters.weights.checkpoint import read_checkpoint
from vflash_adapters.weights.hash_manifest import check_hashes, write_hashes
from vflash_ports.errors import CheckpointError, ContractError
from vflash_ports.observer import SilentObserver


@pytest.fixture
def model(tmp_path: Path) -> Path:
    root = tmp_path / "model"
    (root / "vae").mkdir(parents=True)
    save_file({"a": torch.randn(5000)}, root / "vae" / "d.safetensors")
    (root / "model_index.json").write_text("{}")
    (root / ".cache").mkdir()
    (root / ".cache" / "x").touch()
    return root


def test_an_untouched_folder_passes(model: Path) -> None:
    """The list covers every visible file, and may lie in the folder itself."""
    made = write_hashes(model, model / "hashes.json")
    assert made.files == 2
    assert check_hashes(model, model / "hashes.json", workers=1).byte_count == made.byte_count
    with pytest.raises(ContractError, match="exists already"):
        write_hashes(model, model / "hashes.json")


def test_hashes_never_taken_are_told_with_how_to_take_them(model: Path) -> None:
    """The first `verify` of a folder says what comes before it."""
    with pytest.raises(CheckpointError, match=r"hashes\.json: no such file; take the hashes first, with .*--record"):
        check_hashes(model, model / "hashes.json")


@pytest.mark.parametrize("act", [write_hashes, check_hashes])
def test_a_missing_folder_is_told(tmp_path: Path, act) -> None:
    """Not the list of hashes that would lie in it."""
    with pytest.raises(CheckpointError, match=r"^.*none: no such folder"):
        act(tmp_path / "none", tmp_path / "none" / "hashes.json")


@pytest.mark.parametrize("workers", [0, 3, True, 2.0, "2", None])
def test_workers_are_counted_by_their_own_name(model: Path, workers) -> None:
    """As the command line calls them."""
    with pytest.raises(ContractError, match=r"^workers must be 1, 2, 4 or 8, not"):
        write_hashes(model, model / "new.json", workers=workers)


def test_an_existing_list_is_refused_before_anything_is_hashed(model: Path) -> None:
    """A folder of many gigabytes is not read for nothing."""
    (model / "hashes.json").touch()
    seen = Seen()
    with pytest.raises(ContractError, match="exists already"):
        write_hashes(model, model / "hashes.json", observer=seen)
    assert seen.stages == []


class Seen(SilentObserver):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def progress(self, stage: str, completed: int, total: int) -> None:
        self.stages.append(stage)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1000] ^= 4
    path.write_bytes(content)


def test_a_flipped_byte_is_found_only_by_content(model: Path, tmp_path: Path) -> None:
    """Header and size checks pass a damaged payload; the hashes name the shard."""
    write_hashes(model, tmp_path / "hashes.json")
    flip(model / "vae" / "d.safetensors")
    assert read_checkpoint(model / "vae").specs["a"].shape == (5000,)
    with pytest.raises(CheckpointError, match=r"vae/d\.safetensors has other content"):
        check_hashes(model, tmp_path / "hashes.json")


def test_missing_cut_and_foreign_files_are_named(model: Path, tmp_path: Path) -> None:
    """Every difference is listed at once."""
    write_hashes(model, tmp_path / "hashes.json")
    (model / "model_index.json").unlink()
    (model / "vae" / "extra.safetensors").touch()
    shard = model / "vae" / "d.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as caught:
        check_hashes(model, tmp_path / "hashes.json")
    for words in ("model_index.json is missing", "extra.safetensors was never hashed", "d.safetensors has "):
        assert words in str(caught.value)


def test_an_altered_list_is_refused(model: Path, tmp_path: Path) -> None:
    """The list itself is sealed."""
    write_hashes(model, tmp_path / "hashes.json")
    content = (tmp_path / "hashes.json").read_bytes()
    (tmp_path / "hashes.json").write_bytes(content.replace(b"vae/d", b"vae/e"))
    with pytest.raises(CheckpointError, match="altered"):
        check_hashes(model, tmp_path / "hashes.json")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    """Hashing nothing is a mistake."""
    with pytest.raises(CheckpointError, match="no file in it"):
        write_hashes(tmp_path / "gone", tmp_path / "hashes.json")
