"""The reader that integrators import by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vflash.native.h3_buffered_weights import SequentialWeights
from vflash.native.h3_weight_codec import prepare
from vflash_ports.errors import CheckpointError, ContractError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    save_file({"weight": torch.randn(300, 300).bfloat16(), "bias": torch.ones(3)}, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_tensors_outlive_the_scope(source: Path, tmp_path: Path, compressed: bool, workers: int) -> None:
    """Both ways of reading give the original's bits, valid after the scope."""
    sidecar = None
    if compressed:
        prepare(source, tmp_path / "s")
        sidecar = tmp_path / "s"
    with SequentialWeights(source, read_workers=workers, compressed_directory=sidecar) as weights:
        kept = {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118
    from safetensors.torch import load_file

    for name, tensor in load_file(source).items():
        assert torch.equal(kept[name], tensor)


def test_reading_needs_an_open_scope(source: Path) -> None:
    """Outside of `with`, and with a second `with` on the same object, the error says what to do."""
    weights = SequentialWeights(source)
    with pytest.raises(ContractError, match="with SequentialWeights"):
        weights.get_tensor("weight")
    with weights:
        with pytest.raises(ContractError, match="open already"), weights:
            pass
        with pytest.raises(CheckpointError, match="gone"):
            weights.get_tensor("gone")
    with pytest.raises(ContractError, match="read_workers"):
        SequentialWeights(source, read_workers=3)
