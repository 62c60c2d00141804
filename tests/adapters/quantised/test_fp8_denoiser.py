"""Denoisers stored in row-scaled FP8: written, read in every layout, refused when wrong, and how far they drift."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from exports import export_native
from safetensors.torch import load_file, save_file

from vflash.domain.model_facts import read_model_facts
from vflash.domain.plan import Plan, plan_request
from vflash.domain.request import VideoRequest
from vflash.model.load import LINEARS, CheckpointBlocks, check_specs
from vflash.model.transformer import open_denoiser
from vflash.stages.denoise import denoise
from vflash.stages.encode import Conditioning, Conditions
from vflash_adapters.attention.sdpa import sdpa_attention
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.linear.fp8 import Fp8WeightOnlyLinear, W8A8Linear
from vflash_adapters.linear.row_quantiser import quantise_rows
from vflash_adapters.manifest import read_sealed
from vflash_adapters.quantised.model_folder import KIND, MANIFEST, quantise_model
from vflash_adapters.residency.resident import Resident
from vflash_adapters.tiny_checkpoint import StoredDtype, write_tiny_checkpoint
from vflash_adapters.weights.layouts.canonical_source import CanonicalOpener
from vflash_adapters.weights.layouts.recipes import QkvOrder
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import CheckpointError, ContractError, UnsupportedError
from vflash_ports.linear import LinearExecution
from vflash_ports.observer import SilentObserver
from vflash_ports.text_encoder import TextConditioning
from vflash_ports.weights import WeightSource

CPU, BF16 = torch.device("cpu"), torch.bfloat16
ALL_ROLES = tuple(LINEARS)
WEIGHT_ONLY, W8A8 = Fp8WeightOnlyLinear(), W8A8Linear(row_kernels="torch")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model stored as the release is, in BF16."""
    folder = tmp_path_factory.mktemp("fp8-denoiser") / "plain"
    write_tiny_checkpoint(folder, dtype=StoredDtype.MIXED)
    return folder


def quantise(model: Path, output: Path, roles: tuple[str, ...] = ALL_ROLES) -> dict[str, object]:
    return quantise_model(
        CanonicalOpener(MmapWeights),
        LINEARS,
        model,
        output,
        denoiser_layers=roles,
        text_encoder_layers=(),
        observer=SilentObserver(),
    )


@pytest.fixture(scope="module")
def fp8(plain: Path) -> Path:
    quantise(plain, plain.parent / "fp8")
    return plain.parent / "fp8"


def blocks(source: WeightSource, folder: Path, execution: LinearExecution) -> list[dict[str, torch.Tensor]]:
    """Every block as the residency would hold it."""
    facts = read_model_facts(folder, denoiser="transformer").denoiser
    check_specs(source.specs(), facts, what="test")
    with source.open() as reader:
        loader = CheckpointBlocks(
            reader=reader, source_specs=source.specs(), facts=facts, execution=execution, dtype=BF16, device=CPU
        )
        loaded = []
        for index in range(loader.count):
            tensors = {name: torch.empty(spec.shape, dtype=spec.dtype) for name, spec in loader.specs().items()}
            loader.load_into(index, tensors)
            loaded.append(tensors)
    return loaded


def assert_same_blocks(seen: list[dict[str, torch.Tensor]], wanted: list[dict[str, torch.Tensor]]) -> None:
    assert len(seen) == len(wanted) > 0
    for ours, theirs in zip(seen, wanted, strict=True):
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor.view(torch.uint8), theirs[name].view(torch.uint8)), name


def test_stored_fp8_is_what_loading_would_have_made(plain: Path, fp8: Path) -> None:
    """Quantised once on disk or at every load: the same bits in the block stack."""
    stored = blocks(MmapWeights(fp8 / "transformer"), fp8, WEIGHT_ONLY)
    assert_same_blocks(stored, blocks(MmapWeights(plain / "transformer"), plain, WEIGHT_ONLY))


def test_everything_else_is_copied_bit_by_bit(plain: Path, fp8: Path) -> None:
    """Norms, embeddings, modulation, the 12 float32 tensors, and every other file of the folder."""
    manifest = read_sealed(fp8 / MANIFEST, KIND, {"components": dict})["components"]
    before, after = MmapWeights(plain / "transformer"), MmapWeights(fp8 / "transformer")
    quantised = {f"{module}.weight" for module in manifest["transformer"]["quantised"]}
    assert quantised == {name for name, spec in after.specs().items() if spec.dtype == torch.float8_e4m3fn}
    with before.open() as old, after.open() as new:
        for name, spec in before.specs().items():
            if name not in quantised:
                assert after.specs()[name].dtype == spec.dtype
                assert torch.equal(old.get_tensor(name), new.get_tensor(name))
    float32 = {name for name, spec in after.specs().items() if spec.dtype == torch.float32 and "scale" not in name}
    assert len(float32) == 12
    for path in plain.rglob("*"):
        if path.is_file() and not path.name.startswith("diffusion_pytorch_model") | (path.parent.name == "vae"):
            assert (fp8 / path.relative_to(plain)).read_bytes() == path.read_bytes()


def test_the_manifest_names_what_was_done(fp8: Path) -> None:
    """Layers, sizes and hashes of every file written; both denoisers, half the bytes of their matrices."""
    components = read_sealed(fp8 / MANIFEST, KIND, {"components": dict})["components"]
    assert set(components) == {"transformer", "transformer_ref"}
    for folder, component in components.items():
        assert all(name.startswith("transformer_blocks.") for name in component["quantised"])
        for name, file in component["files"].items():
            assert (fp8 / folder / name).stat().st_size == file["size"]
    assert components["transformer"]["stored_bytes"] < components["transformer"]["source_bytes"]


def test_large_components_are_cut_into_indexed_shards(plain: Path, tmp_path: Path, monkeypatch) -> None:
    """Under the names the public loaders look for."""
    monkeypatch.setattr("vflash_adapters.quantised.shard_writer.MAX_SHARD_BYTES", 60_000)
    quantise(plain, tmp_path / "fp8")
    shards = sorted(path.name for path in (tmp_path / "fp8" / "transformer").glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0] == f"diffusion_pytorch_model-00001-of-{len(shards):05}.safetensors"
    whole = blocks(MmapWeights(plain / "transformer"), plain, WEIGHT_ONLY)
    assert_same_blocks(blocks(MmapWeights(tmp_path / "fp8" / "transformer"), plain, WEIGHT_ONLY), whole)


def test_public_readers_open_what_is_written(fp8: Path) -> None:
    """The header is plain safetensors."""
    tensors = load_file(fp8 / "transformer" / "diffusion_pytorch_model.safetensors")
    assert tensors["transformer_blocks.0.ff.net.2.weight"].dtype == torch.float8_e4m3fn


def test_layers_left_out_run_as_they_are(plain: Path, tmp_path: Path) -> None:
    """Only the FFN in FP8: attention's matrices stay BF16 under every FP8 execution."""
    quantise(plain, tmp_path / "ffn", ("ff.in", "ff.out"))
    source = MmapWeights(tmp_path / "ffn" / "transformer")
    for execution in (WEIGHT_ONLY, W8A8):
        first = blocks(source, plain, execution)[0]
        assert first["ff.in.weight"].dtype == first["ff.out.weight"].dtype == torch.float8_e4m3fn
        assert first["attn.qkv.weight"].dtype == first["attn.out.weight"].dtype == BF16
        assert "attn.qkv.scale" not in first


@pytest.mark.parametrize("order", list(QkvOrder))
@pytest.mark.parametrize("flat", [False, True])
def test_per_channel_fp8_files_of_other_writers_load(plain: Path, tmp_path: Path, order: QkvOrder, flat: bool) -> None:
    """Native names, fused QKV, one float32 scale an output channel, as [out, 1] or [out]."""
    tensors = load_all(plain / "transformer")
    heads = read_model_facts(plain, denoiser="transformer").denoiser.num_attention_heads
    native = export_native(tensors, heads=heads if order is QkvOrder.INTERLEAVED else None)
    stored = dict(native)
    for name, tensor in native.items():
        if name.startswith("blocks.") and tensor.ndim == 2 and "adaln" not in name:
            rows = quantise_rows(tensor)
            stored[name] = rows.codes
            stored[f"{name}_scale"] = rows.scales[:, 0].contiguous() if flat else rows.scales
    (tmp_path / "x").mkdir()
    save_file(stored, tmp_path / "x" / "minimax_h3_fp8.safetensors")
    source = CanonicalOpener(MmapWeights, qkv_order=order)(tmp_path / "x")
    wanted = blocks(MmapWeights(plain / "transformer"), plain, WEIGHT_ONLY)
    assert_same_blocks(blocks(source, plain, WEIGHT_ONLY), wanted)


def load_all(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def damaged(fp8: Path, tmp_path: Path, changes: Mapping[str, torch.Tensor | None]) -> MmapWeights:
    """The FP8 transformer with tensors replaced or left out."""
    tensors = {**load_all(fp8 / "transformer"), **changes}
    save_file({name: t for name, t in tensors.items() if t is not None}, tmp_path / "model.safetensors")
    return MmapWeights(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("transformer_blocks.0.ff.net.2.weight_scale", None, "without transformer_blocks.0.ff.net.2.weight_scale"),
        ("transformer_blocks.0.ff.net.2.weight_scale", torch.ones(3, 1), "one float32 for each"),
        ("transformer_blocks.0.ff.net.2.weight_scale", torch.ones(32, 1).bfloat16(), "one float32 for each"),
        ("transformer_blocks.0.ff.net.2.weight_scale", torch.zeros(32, 1), "holds zero"),
        ("transformer_blocks.0.ff.net.2.weight_scale", torch.full((32, 1), float("nan")), "NaN"),
        ("transformer_blocks.0.norm1.weight", torch.ones(32).to(torch.float8_e4m3fn), "must keep its precision"),
        ("proj_in.weight", torch.ones(32, 96).to(torch.float8_e4m3fn), "must keep its precision"),
        ("transformer_blocks.0.ff.net.2.weight", torch.ones(32, 48).to(torch.float8_e5m2), "not stored in E4M3"),
        ("transformer_blocks.0.ff.net.2.weight", torch.ones(32, 48).bfloat16(), "not stored in E4M3"),
    ],
)
def test_wrong_fp8_tensors_are_refused_by_name(
    fp8: Path, tmp_path: Path, name: str, tensor: torch.Tensor | None, words: str
) -> None:
    """Missing, misshapen, unusable or misplaced: nothing is guessed, and no scale is taken to be one."""
    source = damaged(fp8, tmp_path, {name: tensor})
    with pytest.raises(CheckpointError, match=words):
        blocks(source, fp8, WEIGHT_ONLY)


def test_blocks_must_be_stored_alike(fp8: Path, tmp_path: Path) -> None:
    """A ring moves blocks of one shape."""
    name = "transformer_blocks.1.ff.net.2.weight"
    codes = load_all(fp8 / "transformer")[name]
    source = damaged(fp8, tmp_path, {name: codes.float().bfloat16(), f"{name}_scale": None})
    with pytest.raises(CheckpointError, match="convert all blocks alike"):
        blocks(source, fp8, WEIGHT_ONLY)


def test_bf16_execution_refuses_fp8_weights(fp8: Path) -> None:
    """Before a weight is read, with the way out."""
    with pytest.raises(UnsupportedError, match="fp8-weight-only"):
        blocks(MmapWeights(fp8 / "transformer"), fp8, Bf16Linear())


def test_quantising_refuses_what_makes_no_sense(plain: Path, fp8: Path, tmp_path: Path) -> None:
    """A quantised model, an existing output, an unknown layer, no layers at all, a folder that is no model."""
    cases = (
        (fp8, tmp_path / "a", ALL_ROLES, CheckpointError, "quantised already"),
        (plain, fp8, ALL_ROLES, ContractError, "exists already"),
        (plain, tmp_path / "b", ("attn.q",), ContractError, "attn.qkv"),
        (plain, tmp_path / "c", (), ContractError, "none chosen"),
        (tmp_path, tmp_path / "d", ALL_ROLES, CheckpointError, "model_index.json"),
    )
    for model, output, roles, kind, words in cases:
        with pytest.raises(kind, match=words):
            quantise(model, output, roles)
    assert list(tmp_path.iterdir()) == []


def test_a_weight_with_nan_leaves_nothing_behind(plain: Path, tmp_path: Path) -> None:
    """The tensor is named; the output never appears."""
    shutil.copytree(plain, tmp_path / "model")
    folder = tmp_path / "model" / "transformer"
    index = json.loads((folder / "diffusion_pytorch_model.safetensors.index.json").read_text())["weight_map"]
    name = "transformer_blocks.1.attn.to_k.weight"
    tensors = load_file(folder / index[name])
    tensors[name][0, 0] = float("nan")
    save_file(tensors, folder / index[name], {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"transformer_blocks\.1\.attn\.to_k"):
        quantise(tmp_path / "model", tmp_path / "fp8")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


ERROR_BOUNDS: Mapping[str, float] = {"fp8-weight-only": 0.03, "w8a8": 0.035}
"""Relative error of the final latents after four evaluations, against BF16 of the same tiny model; measured 0.020 and
0.024."""


def test_the_error_over_a_short_trajectory_is_bounded(plain: Path, fp8: Path) -> None:
    """Four evaluations from one seed: FP8 moves the latents, by a few per cent and not more; stored equals made."""
    exact = run(plain, Bf16Linear())
    for execution in (WEIGHT_ONLY, W8A8):
        made, stored = run(plain, execution), run(fp8, execution)
        assert torch.equal(made, stored)
        error = float((made.double() - exact.double()).norm() / exact.double().norm())
        assert 1e-4 < error < ERROR_BOUNDS[execution.name], (execution.name, error)


def run(folder: Path, execution: LinearExecution) -> torch.Tensor:
    plan: Plan = plan_request(VideoRequest(prompt="x", width=64, height=64, steps=4), read_model_facts(folder))
    facts = read_model_facts(folder, denoiser=plan.denoiser).denoiser
    embeds = torch.randn(9, facts.text_dim, generator=torch.Generator().manual_seed(4)).bfloat16()
    text = TextConditioning(embeds=embeds, tags=torch.ones(9, dtype=torch.int64))
    with open_denoiser(
        MmapWeights(folder / plan.denoiser),
        what="test",
        facts=facts,
        execution=execution,
        kernels=TorchBlockKernels(),
        residency=Resident(),
        device=CPU,
        dtype=BF16,
        ffn_chunk_rows=256,
    ) as denoiser:
        expected = () if isinstance(execution, Bf16Linear) else ALL_ROLES
        assert denoiser.fp8_linears == expected
        latents, _ = denoise(
            plan, Conditioning(text=text, conditions=Conditions()), denoiser, sdpa_attention("sdpa"), SilentObserver()
        )
    return torch.cat([latents.video.flatten(), latents.audio.flatten()])
