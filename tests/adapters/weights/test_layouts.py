"""Checkpoint layouts: one set of weights, written every way, comes out under the same names with the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from exports import export_native
from safetensors.torch import save_file

from vflash.domain.model_facts import DenoiserFacts
from vflash.model.load import check_specs, expected_shapes
from vflash_adapters.weights.layouts.canonical_source import CanonicalOpener
from vflash_adapters.weights.layouts.recipes import QkvOrder
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import CheckpointError

FACTS = DenoiserFacts(
    num_attention_heads=3, attention_head_dim=8, hidden_size=20, num_layers=2, num_refiner_layers=1, ffn_dim=14,
    text_dim=10, freq_dim=4, time_embed_hidden_dim=6, time_embed_dim=5, rope_freq_dim=1,
)  # fmt: skip
INTERLEAVED, GROUPED = QkvOrder.INTERLEAVED, QkvOrder.GROUPED


@pytest.fixture
def canonical() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in expected_shapes(FACTS).items()}


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "weights.safetensors")
    return folder


def assert_canonical(path: Path, canonical: dict[str, torch.Tensor], order: QkvOrder | None = None) -> str:
    source = CanonicalOpener(MmapWeights, qkv_order=order)(path)
    specs = source.specs()
    check_specs(specs, FACTS, what="test")
    with source.open() as reader:
        for name, tensor in canonical.items():
            assert (specs[name].name, specs[name].shape) == (name, tuple(tensor.shape))
            assert specs[name].byte_count == tensor.numel() * 2
            assert torch.equal(reader.get_tensor(name), tensor), name
            out = torch.zeros_like(tensor)
            reader.read_into(name, out)
            assert torch.equal(out, tensor), name
    return source.layout  # type: ignore[attr-defined, no-any-return]


def test_diffusers_passes_through(canonical, tmp_path: Path) -> None:
    """Canonical names are kept as they are."""
    assert assert_canonical(write(tmp_path / "transformer", canonical), canonical) == "diffusers"


def test_a_row_order_of_rows_that_are_not_fused_is_refused(canonical, tmp_path: Path) -> None:
    """It would change nothing; a component that is no denoiser is read all the same."""
    path = write(tmp_path / "transformer", canonical)
    with pytest.raises(CheckpointError, match=r"stores q, k and v apart, .* drop --qkv-order"):
        CanonicalOpener(MmapWeights, qkv_order=GROUPED)(path).specs()
    other = write(tmp_path / "vae", {"decoder.weight": torch.zeros(2)})
    assert set(CanonicalOpener(MmapWeights, qkv_order=GROUPED)(other).specs()) == {"decoder.weight"}


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize(("order", "heads"), [(INTERLEAVED, 3), (GROUPED, None)])
def test_native_rows_are_reordered(canonical, tmp_path: Path, prefix: str, order: QkvOrder, heads: int | None) -> None:
    """QKV of either row order and swapped FFN halves, with and without ComfyUI's prefix."""
    path = write(tmp_path / "x", export_native(canonical, heads=heads, prefix=prefix))
    assert assert_canonical(path, canonical, order) == f"native-{order}"


def test_the_wrong_order_is_another_model(canonical, tmp_path: Path) -> None:
    """Names and shapes agree under both orders; only the weights differ. This is why nobody may guess."""
    path = write(tmp_path / "x", export_native(canonical, heads=3))
    with CanonicalOpener(MmapWeights, qkv_order=GROUPED)(path).open() as reader:
        name = "transformer_blocks.0.attn.to_k.weight"
        assert reader.get_tensor(name).shape == canonical[name].shape
        assert not torch.equal(reader.get_tensor(name), canonical[name])


def test_fused_qkv_without_a_known_order_is_refused(canonical, tmp_path: Path) -> None:
    """The refusal names the flag that decides it, and what the numbers suggest."""
    for part, size in (("q", 1.0), ("k", 4.0), ("v", 0.2)):  # as in trained models, q, k and v differ in size
        for name in canonical:
            if f".to_{part}." in name:
                canonical[name] = canonical[name] * size
    for heads, likely in ((3, "interleaved"), (None, "grouped")):
        path = write(tmp_path / likely, export_native(canonical, heads=heads))
        with pytest.raises(CheckpointError, match=f"--qkv-order interleaved or.*looks {likely}"):
            CanonicalOpener(MmapWeights)(path).specs()


def test_the_original_release_is_known_by_its_model_index(canonical, tmp_path: Path) -> None:
    """Its partition mark says interleaved; a contradicting flag is refused."""
    path = write(tmp_path / "FL2VA" / "transformer", export_native(canonical, heads=3))
    index = {"_class_name": "X", "_minimax_h3": {"partition": "fl2va", "tasks": ["t2va", "fl2va"]}}
    (tmp_path / "FL2VA" / "model_index.json").write_text(json.dumps(index))
    assert assert_canonical(path, canonical) == "native-interleaved"
    assert assert_canonical(path / "weights.safetensors", canonical, INTERLEAVED) == "native-interleaved"
    with pytest.raises(CheckpointError, match="drop --qkv-order grouped"):
        CanonicalOpener(MmapWeights, qkv_order=GROUPED)(path).specs()


@pytest.mark.parametrize(
    ("extra", "family"),
    [
        ({"blocks.0.attn.qkv_proj.comfy_quant": torch.zeros(4, dtype=torch.uint8)}, "ComfyUI quantised"),
        ({"blocks.0.attn.qkv_proj.weight_scale": torch.ones(1)}, "scaled FP8 or INT8"),
        ({"blocks.0.mlp.fc1.weight_scale_2": torch.ones(1)}, "NVFP4"),
        ({"blocks.0.mlp.fc1.weight_s_rel": torch.ones(1)}, "W4A8"),
        ({"blocks.0.mlp.fc1.pre_quant_scale": torch.ones(1)}, "AWQ"),
        ({"blocks.0.attn.qv_proj.weight": torch.ones(2, 2)}, "Keyless"),
        ({"linear_branch.0.weight": torch.ones(2, 2)}, "VDN"),
        ({"blocks.0.attn.to_gate_compress.weight": torch.ones(2, 2)}, "FastH3"),
        ({"blocks.0.mlp.fc1.weight._data": torch.ones(2, 2)}, "quanto"),
        ({"blocks.0.mlp.fc1.weight.absmax": torch.ones(2), "a.quant_state.x": torch.ones(1)}, "bitsandbytes"),
        ({"blocks.0.attn.qkv_proj.lora_A.weight": torch.ones(2, 2)}, "an adapter"),
        ({"blocks.9.mlp.fc2.weight": torch.zeros(2, 2, dtype=torch.float8_e4m3fn)}, "8-bit weights without scales"),
    ],
)
def test_known_families_are_refused_by_name(canonical, tmp_path: Path, extra: dict, family: str) -> None:
    """Quantised, pruned-attention and adapter files are recognised from names and dtypes."""
    path = write(tmp_path / "x", export_native(canonical, heads=3) | extra)
    with pytest.raises(CheckpointError, match=family):
        CanonicalOpener(MmapWeights, qkv_order=INTERLEAVED)(path).specs()


@pytest.mark.parametrize(
    ("head", "words"), [(b"GGUF" + bytes(60), "GGUF"), (b"PK\x03\x04" + bytes(60), "pickle")], ids=["gguf", "pickle"]
)
@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors", "model.pt"])
def test_other_containers_are_refused_by_name(tmp_path: Path, head: bytes, words: str, name: str) -> None:
    """GGUF and pickle files are told from their first bytes, whatever they are called."""
    (tmp_path / name).write_bytes(head)
    with pytest.raises(CheckpointError, match=words):
        CanonicalOpener(MmapWeights)(tmp_path / name).specs()


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("blocks.0.attn.mystery.weight", (2, 2), "belongs to no module"),
        ("mystery.weight", (2, 2), "belongs to no module"),
        ("blocks.7.attn.qkv_proj.weight", (9, 20), "head width"),
        ("blocks.7.mlp.fc1.weight", (3, 20), "does not divide"),
    ],
)
def test_names_and_rows_that_fit_nothing_are_refused(canonical, tmp_path: Path, name: str, shape, words: str) -> None:
    """A tensor that no table knows, or rows that do not divide, name themselves."""
    path = write(tmp_path / "x", export_native(canonical, heads=3) | {name: torch.ones(shape)})
    with pytest.raises(CheckpointError, match=words):
        CanonicalOpener(MmapWeights, qkv_order=INTERLEAVED)(path).specs()


def test_unknown_names_are_refused_by_the_reader(canonical, tmp_path: Path) -> None:
    """Stored names are not names here."""
    path = write(tmp_path / "x", export_native(canonical, heads=3))
    with CanonicalOpener(MmapWeights, qkv_order=INTERLEAVED)(path).open() as reader:
        with pytest.raises(CheckpointError, match="qkv_proj"):
            reader.get_tensor("blocks.0.attn.qkv_proj.weight")
        with pytest.raises(CheckpointError, match="qkv_proj"):
            reader.read_into("blocks.0.attn.qkv_proj.weight", torch.ones(1))
