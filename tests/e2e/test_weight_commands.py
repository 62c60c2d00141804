"""`vflash sidecar`, `vflash verify` and the ways of reading weights, from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from vflash.cli import app
from vflash_ports.errors import CheckpointError, ContractError


def vflash(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result


@pytest.fixture
def model(tiny_checkpoints, tmp_path: Path) -> Path:
    shutil.copytree(tiny_checkpoints["small"], tmp_path / "model")
    return tmp_path / "model"


def test_sidecar_prepare_verify_inspect(model: Path, tmp_path: Path) -> None:
    """A whole model folder is prepared, proved and described; progress ends at the full size."""
    sidecar = tmp_path / "sidecar"
    prepared = vflash("sidecar", "prepare", model, sidecar, "--workers", 2, "--json")
    report = json.loads(prepared.stdout)
    assert report["merge"] == "numba"
    last = json.loads(prepared.stderr.splitlines()[-1])
    assert last == {"stage": "sidecar", "completed": report["source_bytes"], "total": report["source_bytes"]}
    verified = json.loads(vflash("sidecar", "verify", model, sidecar, "--merge", "numpy", "--json").stdout)
    assert verified["byte_count"] == report["source_bytes"]
    components = json.loads(vflash("sidecar", "inspect", sidecar, "--json").stdout)["components"]
    assert set(components) == set(verified["components"])
    assert "transformer" in components
    assert "merges usable here: numba, numpy" in vflash("sidecar", "inspect", sidecar).stdout
    assert "MiB" in vflash("sidecar", "verify", model, sidecar).stderr  # a bar in bytes, with the time left


def test_a_sidecar_is_never_written_twice(model: Path, tmp_path: Path) -> None:
    """An existing target and a misspelt merge are refused."""
    vflash("sidecar", "prepare", model / "transformer", tmp_path / "s")
    with pytest.raises(ContractError, match="exists already"):
        vflash("sidecar", "prepare", model / "transformer", tmp_path / "s")
    with pytest.raises(ContractError, match="merge must be numba or numpy"):
        vflash("sidecar", "prepare", model / "transformer", tmp_path / "t", "--merge", "rust")


def test_verify_finds_a_flipped_byte(model: Path) -> None:
    """Recorded once, compared on demand; damage names its file."""
    vflash("verify", model, "--record")
    assert json.loads(vflash("verify", model, "--json").stdout)["files"] > 10
    shard = next((model / "transformer").glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"transformer/{shard.name} has other content"):
        vflash("verify", model)


def generate(model: Path, output: Path, *options: object) -> dict:
    arguments = ["--model", model, "--prompt", "rain", "--width", 64, "--height", 64, "--steps", 1, "--output", output]
    machine = ["--device", "cpu", "--dtype", "float32", "--save-latents", output.with_suffix(".safetensors"), "--json"]
    return json.loads(vflash("generate", *arguments, *machine, *options).stdout)


def test_every_way_of_reading_gives_the_same_latents(model: Path, tmp_path: Path) -> None:
    """mmap, buffered and sidecar are bit-equal through the whole pipeline, and the receipt names the one that ran."""
    vflash("sidecar", "prepare", model, tmp_path / "sidecar")
    kept = {}
    for reading, options in {
        "mmap": [],
        "buffered": ["--weight-read-workers", 2],
        "sidecar": ["--weight-sidecar", tmp_path / "sidecar"],
    }.items():
        receipt = generate(model, tmp_path / f"{reading}.mp4", "--weight-reading", reading, *options)
        assert receipt["backends"]["weight_reading"] == reading
        kept[reading] = load_file(tmp_path / f"{reading}.safetensors")
    for name, tensor in kept["mmap"].items():
        assert torch.equal(kept["buffered"][name], tensor)
        assert torch.equal(kept["sidecar"][name], tensor)


def test_sidecar_reading_needs_its_folder(model: Path, tmp_path: Path) -> None:
    """Neither half is guessed from the other."""
    with pytest.raises(ContractError, match="go together"):
        generate(model, tmp_path / "a.mp4", "--weight-reading", "sidecar")
    with pytest.raises(ContractError, match="go together"):
        generate(model, tmp_path / "a.mp4", "--weight-sidecar", tmp_path / "s")
    with pytest.raises(ContractError, match="1, 2, 4 or 8"):
        generate(model, tmp_path / "a.mp4", "--weight-reading", "buffered", "--weight-read-workers", 3)
