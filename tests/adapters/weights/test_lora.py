"""Adapter files: one delta saved by every writer loads as one adapter; everything unclear is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from exports import AdapterFile, Delta, export_adapters, kohya_keys, native_pairs, peft_keys
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash.domain.model_facts import DenoiserFacts
from vflash.model.load import expected_shapes
from vflash_adapters.weights.layouts.recipes import QkvOrder
from vflash_adapters.weights.lora import known_files
from vflash_adapters.weights.lora.loader import LoraLoader
from vflash_ports.adapters import Adapter
from vflash_ports.errors import CheckpointError
from vflash_ports.weights import TensorSpec

HEADS = 3
FACTS = DenoiserFacts(
    num_attention_heads=HEADS, attention_head_dim=8, hidden_size=20, num_layers=2, num_refiner_layers=1, ffn_dim=14,
    text_dim=10, freq_dim=4, time_embed_hidden_dim=6, time_embed_dim=5, rope_freq_dim=1,
)  # fmt: skip
BASE = {
    name: TensorSpec(name=name, dtype=torch.bfloat16, shape=shape, byte_count=0)
    for name, shape in expected_shapes(FACTS).items()
}
RANK, ALPHA = 4, 6.0
FAMILIES = (
    "lightx2v", "lightx2v-comfyui", "larryvrh", "ai-toolkit", "ai-toolkit-alpha", "musubi", "diffsynth", "fizgig",
    "peft", "diffusers", "native-metadata",
)  # fmt: skip


def random_delta(modules: list[str], rank: int = RANK, seed: int = 0) -> Delta:
    generator = torch.Generator().manual_seed(seed)
    delta: Delta = {}
    for name in modules:
        out, width = expected_shapes(FACTS)[f"{name}.weight"]
        down = torch.randn(rank, width, generator=generator)
        if name.endswith((".to_k", ".to_v")):
            down = delta[name[:-1] + "q"][0]
        delta[name] = down, torch.randn(out, rank, generator=generator)
    return delta


MODULES = [
    name.removesuffix(".weight")
    for name, shape in expected_shapes(FACTS).items()
    if len(shape) == 2 and name.endswith(".weight")
]


@pytest.fixture(scope="module")
def delta() -> Delta:
    return random_delta(sorted(MODULES, key=lambda name: (name[:-1], "qkv".find(name[-1]))))


def load(path: Path, **options: object) -> Adapter:
    return LoraLoader(**options).load(path, BASE, component="transformer")  # type: ignore[arg-type]


def deltas(adapter: Adapter) -> dict[str, torch.Tensor]:
    return {name: pair.scale * pair.up.double() @ pair.down.double() for name, pair in adapter.modules.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_the_same_adapter(delta: Delta, tmp_path: Path, family: str) -> None:
    """Names, QKV order, halves, prefixes and alpha of each writer come out as one set of residuals."""
    file = export_adapters(delta, heads=HEADS, alpha=ALPHA)[family]
    adapter = load(file.write(tmp_path), **file.options)
    assert set(adapter.modules) == set(delta)
    for name, (down, up) in delta.items():
        pair = adapter.modules[name]
        assert torch.equal(pair.down, down), name
        assert torch.equal(pair.up, up), name
        assert pair.scale == ALPHA / RANK
    assert sorted(target for module in adapter.report.modules for target in module.targets) == sorted(delta)
    assert adapter.report.unmatched == ()


def test_export_table_is_complete(delta: Delta) -> None:
    """Every exported family is tested above."""
    assert set(export_adapters(delta, heads=HEADS, alpha=ALPHA)) == set(FAMILIES)


def test_the_report_names_family_and_alpha_source(delta: Delta, tmp_path: Path) -> None:
    """What a receipt says of each file."""
    said = {}
    for family, file in export_adapters(delta, heads=HEADS, alpha=ALPHA).items():
        report = load(file.write(tmp_path / family), **file.options).report
        said[family] = (report.family, report.alpha_source, report.qkv_order)
    assert said == {
        "lightx2v": ("peft/diffusers", "metadata", "split"),
        "lightx2v-comfyui": ("comfyui/native", "per-key", "grouped"),
        "larryvrh": ("peft/native", "option", "grouped"),
        "ai-toolkit": ("comfyui/native", "option", "grouped"),
        "ai-toolkit-alpha": ("comfyui/native", "per-key", "grouped"),
        "musubi": ("kohya/native", "per-key", "grouped"),
        "diffsynth": ("diffsynth/native", "option", "interleaved"),
        "fizgig": ("kohya/native", "per-key", "split"),
        "peft": ("peft/diffusers", "metadata", "split"),
        "diffusers": ("peft/diffusers", "metadata", "split"),
        "native-metadata": ("peft/native", "metadata", "interleaved"),
    }


def test_a_delta_on_one_heads_key_stays_there(tmp_path: Path) -> None:
    """A change of head 1's K alone changes the same 8 rows of `to_k` from every layout, and nothing else."""
    block = "transformer_blocks.1.attn.to_"
    one_head = random_delta([f"{block}q", f"{block}k", f"{block}v"])
    for part, (_, up) in zip("qkv", one_head.values(), strict=True):
        up[: 8 if part == "k" else None] = 0
        if part == "k":
            up[16:] = 0
    for family, file in export_adapters(one_head, heads=HEADS, alpha=ALPHA).items():
        found = deltas(load(file.write(tmp_path / family), **file.options))
        rows = {name: delta.abs().sum(1).nonzero().flatten().tolist() for name, delta in found.items()}
        assert rows == {f"{block}q": [], f"{block}k": list(range(8, 16)), f"{block}v": []}, family


# --- alpha ---------------------------------------------------------------------------------------------------------


def test_alpha_decides_the_strength(delta: Delta, tmp_path: Path) -> None:
    """One rank-4 delta with no alpha, metadata 2, metadata 4 and per-key 8: refused, then 1 : 2 : 4."""
    plain = peft_keys({name: {"A": down, "B": up} for name, (down, up) in delta.items()})
    with pytest.raises(CheckpointError, match="--adapter-alpha"):
        load(AdapterFile(plain).write(tmp_path / "none"))
    sizes = []
    for number, (metadata, keys) in enumerate(
        [
            ({"alpha": "2"}, {}),
            ({"lora_alpha": "4.0"}, {}),
            ({"alpha": "2"}, {f"{n}.alpha": torch.tensor(8.0) for n in delta}),
        ]
    ):
        adapter = load(AdapterFile(plain | keys, metadata=metadata).write(tmp_path / str(number)))
        sizes.append(sum(float(change.norm()) for change in deltas(adapter).values()))
    assert [round(size / sizes[0], 6) for size in sizes] == [1, 2, 4]


def test_alpha_as_rank_is_taken_per_module(tmp_path: Path) -> None:
    """A file of mixed ranks trained with alpha = rank has scale 1 everywhere."""
    mixed = random_delta(["transformer_blocks.0.attn.to_out.0"], rank=4)
    mixed |= random_delta(["transformer_blocks.0.adaln_proj.linear"], rank=2)
    path = AdapterFile(peft_keys(native_pairs(mixed, heads=None))).write(tmp_path)
    adapter = load(path, alpha="rank")
    assert {pair.scale for pair in adapter.modules.values()} == {1.0}
    assert {module.rank: module.alpha for module in adapter.report.modules} == {4: 4.0, 2: 2.0}


def test_published_files_without_alpha_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a known name, rank and size needs no option; renamed, or with other ranks, it does."""
    delta = random_delta(["transformer_blocks.0.attn.to_out.0", "transformer_blocks.1.attn.to_out.0"])
    known = known_files.KnownAdapter(file_name="known.safetensors", pairs=2, ranks=frozenset({RANK}), alpha=2.0)
    monkeypatch.setattr(known_files, "KNOWN_ADAPTERS", (known,))
    tensors = peft_keys(native_pairs(delta, heads=None))
    path = AdapterFile(tensors, file_name="known.safetensors").write(tmp_path)
    assert load(path).report.alpha_source == "known-file"
    assert {pair.scale for pair in load(path).modules.values()} == {0.5}
    with pytest.raises(CheckpointError, match="alpha"):
        load(path.rename(tmp_path / "renamed.safetensors"))


def test_the_published_table_has_the_published_strengths() -> None:
    """v0.1 of the four-step adapter runs at 8 / 128; larryvrh's files at alpha = rank."""
    known = {row.file_name: row.alpha for row in known_files.KNOWN_ADAPTERS}
    assert known["minimax_h3_fl2v_turbo_4step_v0.1.safetensors"] == 8.0
    assert known["minimax_h3_turbo_v4_step600_ema.safetensors"] is None


@pytest.mark.parametrize("option", [0, -1, float("nan"), float("inf"), "8", "Rank", True])
def test_nonsense_alpha_is_refused(delta: Delta, tmp_path: Path, option: object) -> None:
    """Alpha is a positive number or the word rank ("8" is a number)."""
    path = export_adapters(delta, heads=HEADS, alpha=ALPHA)["larryvrh"].write(tmp_path)
    if option == "8":
        assert load(path, alpha=option).modules
        return
    with pytest.raises(CheckpointError, match="positive number"):
        load(path, alpha=option)


def test_an_alpha_that_contradicts_the_file_is_refused(delta: Delta, tmp_path: Path) -> None:
    """The option fills a gap; it does not override what the file says."""
    path = export_adapters(delta, heads=HEADS, alpha=ALPHA)["lightx2v"].write(tmp_path)
    assert load(path, alpha=ALPHA).report.alpha_source == "metadata"
    with pytest.raises(CheckpointError, match="contradicts"):
        load(path, alpha=8.0)


def test_alpha_on_some_pairs_only_is_refused(delta: Delta, tmp_path: Path) -> None:
    """A file that lost alpha tensors has no one strength."""
    tensors = kohya_keys(native_pairs(delta, heads=None), ALPHA)
    tensors.pop(next(name for name in tensors if name.endswith(".alpha")))
    with pytest.raises(CheckpointError, match="have no alpha"):
        load(AdapterFile(tensors).write(tmp_path))


def test_strength_multiplies_the_scale(delta: Delta, tmp_path: Path) -> None:
    """Strength 0.5 halves every scale and is in the report."""
    path = export_adapters(delta, heads=HEADS, alpha=ALPHA)["lightx2v"].write(tmp_path)
    adapter = load(path, strength=0.5)
    assert {pair.scale for pair in adapter.modules.values()} == {ALPHA / RANK / 2}
    assert adapter.report.strength == 0.5


def test_peft_patterns_are_honoured(delta: Delta, tmp_path: Path) -> None:
    """PEFT's alpha_pattern gives single modules their own alpha."""
    file = export_adapters(delta, heads=HEADS, alpha=ALPHA)["peft"]
    path = file.write(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(
        json.dumps(config | {"alpha_pattern": {"transformer_blocks.0.ff.net.2": 2.0}})
    )
    scales = {name: pair.scale for name, pair in load(path).modules.items()}
    assert scales.pop("transformer_blocks.0.ff.net.2") == 2.0 / RANK
    assert set(scales.values()) == {ALPHA / RANK}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"use_rslora": True}))
    with pytest.raises(CheckpointError, match="use_rslora"):
        load(path)


# --- coverage ------------------------------------------------------------------------------------------------------


def test_partial_and_zero_matches_are_errors(delta: Delta, tmp_path: Path) -> None:
    """A pair for a module that this checkpoint lacks is named, and nothing is loaded."""
    tensors = peft_keys(native_pairs(delta, heads=None))
    ((down, up),) = random_delta(["transformer_blocks.0.attn.to_out.0"]).values()
    tensors |= peft_keys({"blocks.7.attn.out_proj": {"A": down, "B": up}})
    with pytest.raises(CheckpointError, match=r"of \d+ pairs fit.*blocks\.7\.attn\.out_proj"):
        load(AdapterFile(tensors).write(tmp_path / "partial"), alpha=1)
    foreign = peft_keys({"double_blocks.0.img_attn.proj": {"A": down, "B": up}})
    with pytest.raises(CheckpointError, match="only 0 of 1 pairs fit"):
        load(AdapterFile(foreign).write(tmp_path / "zero"), alpha=1)


def test_an_adapter_for_a_pruned_base_is_refused(tmp_path: Path) -> None:
    """AdaLN matrices of width 8 do not fit a full time embedding; the message says why."""
    pair = {"A": torch.ones(2, 8), "B": torch.ones(18 * 20, 2)}
    path = AdapterFile(peft_keys({"blocks.0.adaln_proj.linear": pair})).write(tmp_path)
    with pytest.raises(CheckpointError, match=r"360 x 8, but the checkpoint has 360 x 5 \(trained on a pruned AdaLN"):
        load(path, alpha="rank")


@pytest.mark.parametrize(
    ("name", "tensor", "metadata", "words"),
    [
        ("x.diff", torch.ones(2, 2), {}, "extracted difference"),
        ("blocks.0.attn.out_proj.dora_scale", torch.ones(2), {}, "DoRA"),
        ("blocks.0.attn.out_proj.hada_w1_a", torch.ones(2), {}, "LoHa"),
        ("blocks.0.attn.out_proj.lokr_w1", torch.ones(2), {}, "LoKr"),
        ("blocks.0.attn.out_proj.set_weight", torch.ones(2), {}, "FastH3"),
        ("endpoint_time_embedder.linear.weight", torch.ones(2), {}, "HyperFlow"),
        ("x.lora_A.weight", torch.ones(2, 2), {"hyperflow_sigmas": "1,0"}, "HyperFlow"),
        ("x.lora_A.weight", torch.ones(2, 2), {"base_schedule": "1.0,0.7"}, "FlashGen"),
        ("x.lora_A.weight", torch.ones(2, 2), {"format": "fastvideo-lora-v2"}, "FastH3"),
        ("x.lora_A.weight", torch.ones(2, 2), {"model": "h3_keyless_core50_v1"}, "Keyless"),
        ("blocks.0.attn.qv_proj.lora_A.weight", torch.ones(2, 2), {}, "Keyless"),
        ("proj_out.lora_A.weight", torch.ones(2, 2, 2), {}, "more than two dimensions"),
        ("blocks.0.attn.out_proj.lora_B.bias", torch.ones(2), {}, "biases"),
        ("blocks.0.attn.out_proj.something", torch.ones(2), {}, "no part of a LoRA pair"),
        ("blocks.0.attn.out_proj.lora_A.weight", torch.ones(2, 20), {}, "has no up tensor"),
    ],
)
def test_other_families_are_refused_by_name(tmp_path: Path, name: str, tensor, metadata, words: str) -> None:
    """What is no plain LoRA is recognised."""
    with pytest.raises(CheckpointError, match=words):
        load(AdapterFile({name: tensor}, metadata=metadata).write(tmp_path), alpha=1)


def test_peft_over_native_names_needs_the_row_order(delta: Delta, tmp_path: Path) -> None:
    """PEFT's wrapper hides which rows were trained; the option decides, and a wrong one is another adapter."""
    tensors = peft_keys(native_pairs(delta, heads=HEADS), prefix="base_model.model.")
    path = AdapterFile(tensors).write(tmp_path)
    with pytest.raises(CheckpointError, match="--adapter-qkv-order"):
        load(path, alpha=ALPHA)
    right = load(path, alpha=ALPHA, qkv_order=QkvOrder.INTERLEAVED)
    wrong = load(path, alpha=ALPHA, qkv_order=QkvOrder.GROUPED)
    name = "transformer_blocks.0.attn.to_k"
    assert torch.equal(right.modules[name].up, delta[name][1])
    assert not torch.equal(wrong.modules[name].up, delta[name][1])
    diffsynth = export_adapters(delta, heads=HEADS, alpha=ALPHA)["diffsynth"].write(tmp_path / "d")
    with pytest.raises(CheckpointError, match="drop --adapter-qkv-order"):
        load(diffsynth, alpha=ALPHA, qkv_order=QkvOrder.GROUPED)


def test_the_reference_transformers_adapter_stays_there(delta: Delta, tmp_path: Path) -> None:
    """A file that names transformer_ref is not put on the other transformer."""
    canonical = {name: {"A": down, "B": up} for name, (down, up) in delta.items()}
    path = AdapterFile(peft_keys(canonical, prefix="transformer_ref."), metadata={"alpha": "4"}).write(tmp_path)
    with pytest.raises(CheckpointError, match="adapts transformer_ref"):
        load(path)
    assert LoraLoader().load(path, BASE, component="transformer_ref").report.component == "transformer_ref"


def test_broken_pairs_are_refused(tmp_path: Path) -> None:
    """NaN, mixed dtypes, FP8 and ranks that disagree name the module."""
    down, up = torch.ones(2, 24), torch.ones(20, 2)
    cases = {
        "NaN or infinity": (down * float("nan"), up),
        "expected one float": (down, up.bfloat16()),
        "no low-rank pair": (down, torch.ones(20, 3)),
        "dtypes": (down.to(torch.float8_e4m3fn), up.to(torch.float8_e4m3fn)),
    }
    for number, (words, (a, b)) in enumerate(cases.items()):
        path = AdapterFile(peft_keys({"blocks.0.attn.out_proj": {"A": a, "B": b}})).write(tmp_path / str(number))
        with pytest.raises(CheckpointError, match=words):
            load(path, alpha=1)


@settings(deadline=None, max_examples=40)
@given(
    modules=st.sets(st.sampled_from([name for name in MODULES if ".to_" not in name]), min_size=1, max_size=5),
    fused=st.booleans(),
    rank=st.sampled_from([1, 2, 5]),
    family=st.sampled_from(FAMILIES),
)
def test_any_set_of_modules_round_trips(
    tmp_path_factory: pytest.TempPathFactory, modules: set[str], fused: bool, rank: int, family: str
) -> None:
    """Any choice of modules and rank comes out as it went in, whichever writer saved it."""
    chosen = sorted(modules) + ([f"transformer_blocks.0.attn.to_{part}" for part in "qkv"] if fused else [])
    delta = random_delta(chosen, rank)
    file = export_adapters(delta, heads=HEADS, alpha=3.0)[family]
    adapter = load(file.write(tmp_path_factory.mktemp("lora")), **file.options)
    assert {name: (pair.down.shape, pair.scale) for name, pair in adapter.modules.items()} == {
        name: (down.shape, 3.0 / rank) for name, (down, _) in delta.items()
    }
    assert all(torch.equal(adapter.modules[name].up, up) for name, (_, up) in delta.items())
