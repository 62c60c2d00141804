"""The predictor file is read strictly: whatever the format does not say is an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from make_tiny_predictor import write_predictor
from vflash_adapters.attention.veda.budget import BudgetKind
from vflash_adapters.attention.veda.predictor import read_predictor
from vflash_ports.errors import CheckpointError

BLOCKS, HEADS, HEAD_DIM = 2, 3, 16
Tensors = dict[str, torch.Tensor]
Metadata = dict[str, str]


def written(path: Path, **changes: object) -> Path:
    write_predictor(path, blocks=BLOCKS, heads=HEADS, head_dim=HEAD_DIM, grids=[(5, 8, 8)], **changes)
    return path


def edited(path: Path, edit: Callable[[Tensors, Metadata], object]) -> Path:
    with safe_open(path, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118
    edit(tensors, metadata)
    save_file(tensors, path, metadata=metadata)
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_projections_are_decoded_to_bfloat16(tmp_path: Path, dtype: str) -> None:
    """Each storage dtype gives the same random projections within its own rounding; FP8 has a scale per head."""
    exact = read_predictor(written(tmp_path / "exact", dtype="float32")).projections(range(2), torch.device("cpu"))
    found = read_predictor(written(tmp_path / "p", dtype=dtype)).projections(range(1, 2), torch.device("cpu"))
    assert list(found) == [1]
    for side in ("q", "k"):
        stored, original = getattr(found[1], side), getattr(exact[1], side)
        assert stored.shape == (HEADS, 3 * HEAD_DIM, HEAD_DIM)
        assert stored.dtype == torch.bfloat16
        error = (stored.float() - original.float()).norm() / original.float().norm()
        assert error < (0.04 if dtype == "float8_e4m3fn" else 4e-3)


def test_fp8_values_are_multiplied_by_their_heads_scale(tmp_path: Path) -> None:
    """Decoding is value times scale in float32, then one rounding to bfloat16."""
    path = written(tmp_path / "p")
    with safe_open(path, framework="pt") as file:
        codes, scales = (file.get_tensor(f"layers.0.proj_k{end}") for end in ("", ".__scale"))
    found = read_predictor(path).projections(range(1), torch.device("cpu"))[0].k
    assert torch.equal(found, (codes.float() * scales[:, None, None]).bfloat16())


@pytest.mark.parametrize(
    ("budget", "kind", "value"),
    [
        ({"keep_ratio": "0.1"}, BudgetKind.RATIO, 0.1),
        ({"target_budget_kind": "tiles", "target_budget_value": "32.0"}, BudgetKind.TILES, 32.0),
        ({"target_budget_kind": "ratio", "target_budget_value": "0.25", "keep_ratio": "0.1"}, BudgetKind.RATIO, 0.25),
    ],
)
def test_both_budget_styles_are_read(tmp_path: Path, budget: dict[str, str], kind: BudgetKind, value: float) -> None:
    """Older files carry a ratio, newer ones a kind and a value."""
    predictor = read_predictor(written(tmp_path / "p", budget=budget))
    assert (predictor.target_budget.kind, predictor.target_budget.value) == (kind, value)
    assert predictor.reference_budget is None


def test_tiled_conditions_bring_a_reference_budget(tmp_path: Path) -> None:
    """Trained on tiled references: they have a budget of their own."""
    budget = {"keep_ratio": "0.1", "tile_conditions": "true", "ref_budget_kind": "tiles", "ref_budget_value": "32"}
    predictor = read_predictor(written(tmp_path / "p", budget=budget))
    assert predictor.tile_conditions
    assert predictor.reference_budget is not None
    assert predictor.reference_budget.value == 32


def _set(key: str, value: str) -> Callable[[Tensors, Metadata], object]:
    return lambda tensors, metadata: metadata.update({key: value})


def _without(key: str) -> Callable[[Tensors, Metadata], object]:
    return lambda tensors, metadata: metadata.pop(key)


FAULTS: dict[str, tuple[Callable[[Tensors, Metadata], object], str]] = {
    "another format": (_set("format", "v2"), "'format' is 'v2'"),
    "an unknown dtype": (_set("dtype", "int4"), "'dtype' is 'int4'"),
    "a dtype that is not the tensors'": (_set("dtype", "bfloat16"), "surplus"),
    "no head count": (_without("num_heads"), "'num_heads'"),
    "a head count that is no number": (_set("num_heads", "3.0"), "'num_heads'"),
    "another block count": (_set("num_layers", "3"), "lacks"),
    "another head size": (_set("head_dim", "8"), "layers.0.proj_q"),
    "no plans": (_without("plans"), "plans"),
    "no budget": (_without("keep_ratio"), "keep_ratio"),
    "a budget that is no number": (_set("keep_ratio", "ten"), "keep_ratio"),
    "half a new budget": (_set("target_budget_value", "3"), "target_budget_kind"),
    "a flag that is none": (_set("tile_conditions", "yes"), "tile_conditions"),
    "tiled conditions without their budget": (_set("tile_conditions", "true"), "ref_budget_kind"),
    "a missing tensor": (lambda tensors, _: tensors.pop("layers.1.proj_k"), "lacks"),
    "a missing scale": (lambda tensors, _: tensors.pop("layers.1.proj_k.__scale"), "lacks"),
    "a surplus tensor": (lambda tensors, _: tensors.update(extra=torch.zeros(1)), "surplus.*extra"),
    "a mis-shaped scale": (
        lambda tensors, _: tensors.update({"layers.0.proj_q.__scale": torch.ones(HEADS, 1)}),
        "layers.0.proj_q.__scale",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_file_is_refused_with_its_name_and_the_field(tmp_path: Path, fault: str) -> None:
    """One change to a good file, one error that says where."""
    edit, message = FAULTS[fault]
    path = edited(written(tmp_path / "p.safetensors"), edit)
    with pytest.raises(CheckpointError, match=rf"p\.safetensors.*{message}"):
        read_predictor(path)


def test_a_missing_file_names_the_cure(tmp_path: Path) -> None:
    """A predictor-free backend exists, and is not chosen by itself."""
    with pytest.raises(CheckpointError, match=r"absent\.safetensors.*'veda-meanpool'"):
        read_predictor(tmp_path / "absent.safetensors")


def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path) -> None:
    """Truncated downloads and web pages saved under the name."""
    path = written(tmp_path / "p.safetensors")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"p\.safetensors.*download"):
        read_predictor(path)
    path.write_text("<html>")
    with pytest.raises(CheckpointError, match=r"p\.safetensors.*download"):
        read_predictor(path)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    """They would rank tiles at random without a word."""

    def spoil(tensors: Tensors, _: Metadata) -> None:
        tensors["layers.0.proj_q.__scale"][1] = torch.inf

    predictor = read_predictor(edited(written(tmp_path / "p.safetensors"), spoil))
    with pytest.raises(CheckpointError, match=r"layers\.0\.proj_q"):
        predictor.projections(range(1), torch.device("cpu"))
