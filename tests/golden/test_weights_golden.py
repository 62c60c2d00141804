"""One model in every checkpoint layout, one delta in every adapter family: the same latents; and the public reference's
own adapter loading, where it reads the file."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from exports import Delta, export_adapters, export_native, export_pruned
from safetensors.torch import load_file, save_file

from vflash.domain.model_facts import ModelFacts, read_model_facts
from vflash.domain.plan import Plan, plan_request
from vflash.domain.request import VideoRequest
from vflash.model.modulation import TimeEmbedder
from vflash.model.positions import index_rows
from vflash.model.sigmas import grids
from vflash.model.transformer import Denoiser, DenoiserInputs, open_denoiser
from vflash.stages.denoise import attention_layout, denoise, draw_noise, lay_out
from vflash.stages.encode import Conditioning, Conditions
from vflash_adapters.attention.sdpa import sdpa_attention
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.linear.fp8 import Fp8WeightOnlyLinear
from vflash_adapters.residency.block_ring import BlockRing
from vflash_adapters.residency.resident import Resident
from vflash_adapters.weights.layouts.canonical_source import CanonicalOpener
from vflash_adapters.weights.lora.loader import LoraLoader
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.adapters import Adapter
from vflash_ports.observer import SilentObserver
from vflash_ports.text_encoder import TextConditioning

CPU, ATTENTION = torch.device("cpu"), sdpa_attention("sdpa")
EVALUATIONS = 3
FAMILIES = (
    "lightx2v", "lightx2v-comfyui", "larryvrh", "ai-toolkit", "ai-toolkit-alpha", "musubi", "diffsynth", "fizgig",
    "peft", "diffusers", "native-metadata",
)  # fmt: skip
READ_BY_REFERENCE = ("lightx2v", "lightx2v-comfyui", "ai-toolkit-alpha", "musubi")
"""Families the reference reads with the file's own alpha. It takes alpha = rank where a file says nothing, reads
DiffSynth rows for 128-wide heads only, and knows neither Fizgig's split names nor PEFT's wrapper."""


@pytest.fixture(scope="module")
def folder(tiny_checkpoints: Mapping[str, Path]) -> Path:
    return tiny_checkpoints["small"]


@pytest.fixture(scope="module")
def facts(folder: Path) -> ModelFacts:
    return read_model_facts(folder)


@pytest.fixture(scope="module")
def canonical(folder: Path) -> dict[str, torch.Tensor]:
    with MmapWeights(folder / "transformer").open() as reader:
        return {name: reader.get_tensor(name).clone() for name in MmapWeights(folder / "transformer").specs()}


@pytest.fixture(scope="module")
def plan(facts: ModelFacts) -> Plan:
    return plan_request(VideoRequest(prompt="rain", width=64, height=96, steps=EVALUATIONS, seed=5), facts)


@pytest.fixture(scope="module")
def conditioning(facts: ModelFacts) -> Conditioning:
    embeds = torch.randn(11, facts.denoiser.text_dim, generator=torch.Generator().manual_seed(8))
    return Conditioning(
        text=TextConditioning(embeds=embeds, tags=torch.ones(11, dtype=torch.int64)), conditions=Conditions()
    )


class Bench:
    """Latents of one fixed request under varying weights."""

    def __init__(self, facts: ModelFacts, plan: Plan, conditioning: Conditioning) -> None:
        self.facts, self.plan, self.conditioning = facts, plan, conditioning

    def open(self, path: Path, adapter: Adapter | None = None, qkv: str | None = None, **choices: object):
        return open_denoiser(
            CanonicalOpener(MmapWeights, qkv_order=qkv)(path),
            what=str(path),
            facts=self.facts.denoiser,
            execution=choices.get("linear", Bf16Linear()),  # type: ignore[arg-type]
            kernels=TorchBlockKernels(),
            residency=choices.get("residency", Resident()),  # type: ignore[arg-type]
            device=CPU,
            dtype=torch.float32,
            ffn_chunk_rows=choices.get("rows", 1 << 20),  # type: ignore[arg-type]
            adapter=adapter,
        )

    def latents(self, path: Path, *arguments: object, **choices: object) -> dict[str, torch.Tensor]:
        with self.open(path, *arguments, **choices) as denoiser:  # type: ignore[arg-type]
            found, _ = denoise(self.plan, self.conditioning, denoiser, ATTENTION, SilentObserver())
        return {"video": found.video, "audio": found.audio}

    @torch.inference_mode()
    def velocities(self, denoiser: Denoiser, evaluation: int) -> tuple[torch.Tensor, torch.Tensor]:
        layout = lay_out(self.plan, denoiser.facts, self.conditioning)
        noise = draw_noise(self.plan, denoiser.facts, self.conditioning)
        steps = grids(self.plan.schedule)
        inputs = DenoiserInputs(
            index=index_rows(layout, self.conditioning.text.tags),
            embeds=self.conditioning.text.embeds,
            condition_video=None,
            condition_audio=None,
            grids=steps,
        )
        attend = ATTENTION.prepare(attention_layout(layout, denoiser, steps.evaluations))
        return denoiser.prepare(inputs, attend, SilentObserver()).evaluate(evaluation, noise.video, noise.audio)


@pytest.fixture(scope="module")
def bench(facts: ModelFacts, plan: Plan, conditioning: Conditioning) -> Bench:
    return Bench(facts, plan, conditioning)


@pytest.fixture(scope="module")
def base_latents(bench: Bench, folder: Path) -> dict[str, torch.Tensor]:
    return bench.latents(folder / "transformer")


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def component(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "w.safetensors")
    return folder


# --- checkpoint layouts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["interleaved", "grouped", "comfyui"])
def test_every_layout_gives_the_same_latents(
    bench: Bench, base_latents, canonical, facts: ModelFacts, tmp_path: Path, layout: str
) -> None:
    """Original, grouped and prefixed exports of one model: bit-equal latents."""
    heads = facts.denoiser.num_attention_heads if layout == "interleaved" else None
    prefix = "model.diffusion_model." if layout == "comfyui" else ""
    path = component(tmp_path / "x", export_native(canonical, heads=heads, prefix=prefix))
    order = "interleaved" if heads else "grouped"
    found = bench.latents(path, None, order)
    assert torch.equal(found["video"], base_latents["video"])
    assert torch.equal(found["audio"], base_latents["audio"])


def curve_of(canonical: dict[str, torch.Tensor], facts: ModelFacts, grid: int) -> torch.Tensor:
    first, second = (
        (canonical[f"time_embedder.linear_{n}.weight"], canonical[f"time_embedder.linear_{n}.bias"]) for n in (1, 2)
    )
    embed = TimeEmbedder(linear_1=first, linear_2=second, freq_dim=facts.denoiser.freq_dim)
    return embed.activated(torch.arange(grid) / (grid - 1))


def test_a_pruned_checkpoint_gives_nearly_the_same_latents(
    bench: Bench, base_latents, canonical, facts: ModelFacts, tmp_path: Path
) -> None:
    """A table of rank 8 at 1025 timesteps stands for the time embedder; what is lost is its truncation (1e-4)."""
    pruned = export_pruned(canonical, curve_of(canonical, facts, 1025), width=8)
    assert not any("time_embedder" in name for name in pruned)
    found = bench.latents(component(tmp_path / "x", pruned), None, "grouped")
    assert relative(found["video"], base_latents["video"]) < 1e-4
    assert relative(found["audio"], base_latents["audio"]) < 1e-4
    full = export_pruned(canonical, curve_of(canonical, facts, 4097), width=facts.denoiser.time_embed_dim)
    found = bench.latents(component(tmp_path / "y", full), None, "grouped")
    assert relative(found["video"], base_latents["video"]) < 1e-5


# --- adapters ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def delta(canonical) -> Delta:
    """Every adaptable module, large enough to change the latents by a third."""
    generator = torch.Generator().manual_seed(3)
    made: Delta = {}
    names = sorted(name.removesuffix(".weight") for name, t in canonical.items() if t.dim() == 2)
    for name in sorted(names, key=lambda name: (name[:-1], "qkv".find(name[-1]))):
        out, width = canonical[f"{name}.weight"].shape
        down = torch.randn(4, width, generator=generator) / width**0.5
        if name.endswith((".to_k", ".to_v")):
            down = made[name[:-1] + "q"][0]
        made[name] = down, torch.randn(out, 4, generator=generator) * 0.05
    return made


@pytest.fixture(scope="module")
def merged_latents(bench: Bench, canonical, delta: Delta, tmp_path_factory) -> dict[str, torch.Tensor]:
    """What the delta means: the base weights plus 1.5 times up @ down, through the plain path."""
    weights = dict(canonical)
    for name, (down, up) in delta.items():
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + 1.5 * (up @ down)
    return bench.latents(component(tmp_path_factory.mktemp("merged") / "x", weights))


def load(folder: Path, path: Path, **options: object) -> Adapter:
    base = MmapWeights(folder / "transformer").specs()
    return LoraLoader(**options).load(path, base, component="transformer")  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_adapter_family_gives_the_same_latents(
    bench: Bench,
    base_latents,
    merged_latents,
    folder: Path,
    facts: ModelFacts,
    delta: Delta,
    tmp_path: Path,
    family: str,
) -> None:
    """Residuals beside the base equal the delta merged into it, to float32 rounding, whoever saved the file."""
    file = export_adapters(delta, heads=facts.denoiser.num_attention_heads, alpha=6.0)[family]
    adapter = load(folder, file.write(tmp_path), **file.options)
    found = bench.latents(folder / "transformer", adapter)
    for stream in ("video", "audio"):
        assert relative(found[stream], merged_latents[stream]) < 1e-5
        assert relative(found[stream], base_latents[stream]) > 0.01


@pytest.mark.parametrize(
    "choices",
    [{"residency": BlockRing()}, {"rows": 128}, {"linear": Fp8WeightOnlyLinear()}],
    ids=["block-ring", "chunked-rows", "fp8-weight-only"],
)
def test_adapters_run_beside_any_base(
    bench: Bench, merged_latents, folder: Path, facts: ModelFacts, delta: Delta, tmp_path: Path, choices: dict
) -> None:
    """Streamed and chunked: the same latents. On a quantised base the adapter's share is kept at full precision."""
    file = export_adapters(delta, heads=facts.denoiser.num_attention_heads, alpha=6.0)["lightx2v"]
    adapter = load(folder, file.write(tmp_path))
    found = bench.latents(folder / "transformer", adapter, **choices)
    tolerance = 0.1 if "linear" in choices else 1e-5
    assert relative(found["video"], merged_latents["video"]) < tolerance
    if "linear" in choices:
        quantised = bench.latents(folder / "transformer", **choices)
        assert relative(quantised["video"], merged_latents["video"]) > 2 * relative(
            found["video"], merged_latents["video"]
        )


def test_mixed_ranks_and_untouched_blocks(
    bench: Bench, folder: Path, canonical, delta: Delta, facts: ModelFacts, tmp_path: Path
) -> None:
    """Blocks of one ring share a shape: ranks are padded, modules without an adapter get none of it."""
    some = {name: pair for name, pair in delta.items() if ".0.attn.to_out" in name or ".2.attn.to_out" in name}
    some = {name: pair for name, pair in some.items() if name.startswith("transformer_blocks.")}
    narrow = min(some)
    some[narrow] = some[narrow][0][:2], some[narrow][1][:, :2]
    from exports import AdapterFile, peft_keys

    pairs = {name: {"A": down, "B": up} for name, (down, up) in some.items()}
    adapter = load(folder, AdapterFile(peft_keys(pairs)).write(tmp_path), alpha="rank")
    weights = dict(canonical)
    for name, (down, up) in some.items():
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + up @ down
    expected = bench.latents(component(tmp_path / "x", weights))
    for residency in (Resident(), BlockRing()):
        found = bench.latents(folder / "transformer", adapter, residency=residency)
        assert relative(found["video"], expected["video"]) < 1e-5


def test_nothing_of_the_base_is_copied(
    bench: Bench, folder: Path, facts: ModelFacts, delta: Delta, tmp_path: Path
) -> None:
    """An adapter adds its own bytes to each block and nothing of the base's size: there is no merged copy."""
    file = export_adapters(delta, heads=facts.denoiser.num_attention_heads, alpha=6.0)["lightx2v"]
    adapter = load(folder, file.write(tmp_path))
    with bench.open(folder / "transformer") as plain, bench.open(folder / "transformer", adapter) as adapted:
        added = adapted.memory().device_weight_bytes - plain.memory().device_weight_bytes
    blocks = [name for name in delta if name.startswith("transformer_blocks.") and "adaln" not in name]
    own = sum(delta[name][0].nbytes + delta[name][1].nbytes + 4 for name in blocks)
    assert own == added


# --- the public reference ----------------------------------------------------------------------------------------


def reference_velocities(bench: Bench, folder: Path, path: Path | None, evaluation: int) -> tuple[torch.Tensor, ...]:
    """One forward of the public transformer, with the adapter loaded by its own loader."""
    from diffusers.loaders.lora_pipeline import MiniMaxH3LoraLoaderMixin
    from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3Transformer3DModel

    model = MiniMaxH3Transformer3DModel.from_pretrained(folder / "transformer").eval()
    if path is not None:
        stored, metadata = MiniMaxH3LoraLoaderMixin.lora_state_dict(str(path), return_lora_metadata=True)
        MiniMaxH3LoraLoaderMixin.load_lora_into_transformer(stored, transformer=model, metadata=metadata)
    layout = lay_out(bench.plan, bench.facts.denoiser, bench.conditioning)
    noise = draw_noise(bench.plan, bench.facts.denoiser, bench.conditioning)
    index = index_rows(layout, bench.conditioning.text.tags)
    timesteps = torch.tensor(grids(bench.plan.schedule).role_timesteps(evaluation), dtype=torch.float32)[index.roles]
    distinct, indices = timesteps.unique(sorted=True, return_inverse=True)
    rows = torch.arange(layout.rows)
    with torch.inference_mode():
        video, audio = model(
            hidden_states=noise.video[None],
            audio_hidden_states=noise.audio[None],
            encoder_hidden_states=bench.conditioning.text.embeds[None],
            timestep=distinct,
            timestep_indices=indices,
            token_tags=torch.tensor([0, 1, 2, 0, 2])[index.roles],
            position_ids=index.positions,
            video_indices=rows[index.target_video],
            audio_indices=rows[index.target_audio],
            text_indices=rows[: index.text_rows],
            return_dict=False,
        )
    return video[0], audio[0]


@pytest.mark.parametrize("family", [None, *READ_BY_REFERENCE])
def test_the_reference_loads_the_same_adapter(
    bench: Bench, folder: Path, facts: ModelFacts, delta: Delta, tmp_path: Path, family: str | None
) -> None:
    """Its `load_lora` and ours give equal velocities in float32, where it reads the file at the file's own alpha."""
    adapter = path = None
    if family is not None:
        file = export_adapters(delta, heads=facts.denoiser.num_attention_heads, alpha=6.0)[family]
        path = file.write(tmp_path)
        adapter = load(folder, path, **file.options)
    with bench.open(folder / "transformer", adapter) as denoiser:
        ours = bench.velocities(denoiser, 1)
    theirs = reference_velocities(bench, folder, path, 1)
    for found, expected in zip(ours, theirs, strict=True):
        assert relative(found, expected) < 1e-5


def test_files_that_say_nothing_agree_at_alpha_as_rank(
    bench: Bench, folder: Path, facts: ModelFacts, delta: Delta, tmp_path: Path
) -> None:
    """The reference assumes alpha = rank; here it must be said, and then gives the same."""
    path = export_adapters(delta, heads=facts.denoiser.num_attention_heads, alpha=4.0)["larryvrh"].write(tmp_path)
    with bench.open(folder / "transformer", load(folder, path, alpha="rank")) as denoiser:
        ours = bench.velocities(denoiser, 1)
    for found, expected in zip(ours, reference_velocities(bench, folder, path, 1), strict=True):
        assert relative(found, expected) < 1e-5


def test_exports_leave_the_checkpoint_alone(folder: Path, canonical, tmp_path: Path) -> None:
    """The reference's view of the tensors is ours: names and bits of the written shards."""
    shutil.copytree(folder / "transformer", tmp_path / "t")
    merged = {}
    for shard in sorted((tmp_path / "t").glob("*.safetensors")):
        merged |= load_file(shard)
    assert merged.keys() == canonical.keys()
    assert all(torch.equal(merged[name], tensor) for name, tensor in canonical.items())
