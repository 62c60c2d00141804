"""Ring against resident, and a whole denoising of real dimensions, on one GPU; random weights made on the device.

    python tools/bench_residency.py --output residency.json
    python tools/bench_residency.py --sections ring --rows 18175 --repeat 12 --output ring.json

Section `ring`: a few real blocks at four lengths, both residencies in turns, beside the copy-bound floor (one block's
bytes over the measured host-to-device rate); `--repeat` turns, and what they spread over. Sections `request`: the
product's own `denoise` stage with all 50 blocks at 1344x768 for 5 s, 4 evaluations after a warm-up of one: exact BF16
resident and from the ring, W8A8 with mean-pooled Veda; peaks beside what `vflash plan` says. Section `encoder`: the
51-layer text prefix on 512 tokens. On a CPU it runs small ones, to try the script itself.

Predicted on one H200 before the first run: a block is 744 MiB, 14.7 ms at 53 GB/s, so the ring is copy-bound below
about 8,500 rows (4,500: 14.7 ms against 5.7; 8,000: 14.7 against 12.6) and within 1.01 from 18,175 up; 4 evaluations of
50 blocks take 23.5 s in BF16 and about 8 s with W8A8 and Veda (6 of 50 blocks dense).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from attrs import evolve, frozen

from bench_stack import SMALL, execution_named
from denoiser_bench.case import Sizes, block_run, random_sequence
from denoiser_bench.floor import exact_attention
from denoiser_bench.timing import GIB
from request_bench.weights import denoiser_weights
from vflash.domain.canvas import Canvas
from vflash.domain.choices import Linear
from vflash.domain.duration import clip_length
from vflash.domain.footprint import Rows, denoise_bytes, table_bytes
from vflash.domain.model_facts import DenoiserFacts
from vflash.domain.plan import Plan
from vflash.domain.request import Mode
from vflash.domain.schedule import Schedule
from vflash.model.block import run_block
from vflash.model.load import bind_block, packed_specs
from vflash.model.transformer import Denoiser, open_denoiser
from vflash.stages.denoise import denoise
from vflash.stages.encode import Conditioning, Conditions
from vflash.stages.watch import RequestWatch
from vflash_adapters.attention.device_default import DeviceDefaultAttention
from vflash_adapters.attention.veda.opening import open_veda
from vflash_adapters.block_kernels.device_default import default_block_kernels
from vflash_adapters.linear.fp8 import default_row_kernels
from vflash_adapters.residency.block_ring import BlockRing
from vflash_adapters.residency.resident import Resident
from vflash_ports.attention import Attention
from vflash_ports.linear import LinearExecution
from vflash_ports.observer import SilentObserver
from vflash_ports.residency import BlockStack, Residency
from vflash_ports.text_encoder import TextConditioning
from vflash_ports.weights import TensorSpec

LENGTHS = (4500, 8000, 18175, 38000)
RING_BLOCKS = 8
PASSES, TURNS = 3, 2
SECTIONS = ("ring", "request", "ring-request", "veda-request", "encoder")


def fill(out: torch.Tensor, device: torch.device, std: float, mean: float = 0.0) -> None:
    """Random values drawn on the device, wherever `out` lies."""
    out.copy_(torch.empty(out.shape, dtype=torch.bfloat16, device=device).normal_(mean, std))


@frozen(kw_only=True, eq=False)
class RandomBlocks:
    """A `BlockLoader` for either residency."""

    facts: DenoiserFacts
    execution: LinearExecution
    device: torch.device

    @property
    def count(self) -> int:
        return self.facts.num_layers

    def specs(self) -> Mapping[str, TensorSpec]:
        return packed_specs(self.facts, self.execution, torch.bfloat16)

    def load_into(self, index: int, out: Mapping[str, torch.Tensor]) -> None:
        for tensor in out.values():
            vector = tensor.ndim == 1
            fill(tensor, self.device, 0.1 if vector else tensor.shape[1] ** -0.5, 1.0 if vector else 0.0)


class Bench:
    def __init__(self, output: Path, lengths: Sequence[int] = LENGTHS, turns: int = TURNS) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.real = self.device.type == "cuda"
        self.output, self.turns = output, turns
        self.lengths = lengths if self.real else (64,)
        self.report: dict[str, Any] = {"torch": torch.__version__, "device": str(self.device)}
        if self.real:
            self.report["device"] = torch.cuda.get_device_name()

    def section(self, name: str, run: Callable[[], Any]) -> None:
        """A section that fails is reported and the rest goes on."""
        started = perf_counter()
        try:
            result = run()
        except (RuntimeError, ValueError, TypeError, ImportError, AttributeError) as error:
            result = {"failed": f"{type(error).__name__}: {error}"}
        self.report[name] = result
        self.output.write_text(json.dumps(self.report, indent=1))
        print(f"{name} ({perf_counter() - started:.1f} s): {json.dumps(result)}", flush=True)
        if self.real:
            torch.cuda.empty_cache()

    def synchronise(self) -> None:
        if self.real:
            torch.cuda.synchronize()

    @torch.inference_mode()
    def ring(self) -> dict[str, Any]:
        facts = evolve(DenoiserFacts() if self.real else SMALL, num_layers=RING_BLOCKS if self.real else 3)
        execution = execution_named("bf16", "torch")
        loader = RandomBlocks(facts=facts, execution=execution, device=self.device)
        stacks: dict[str, BlockStack[Any]] = {}
        residencies: tuple[Residency, ...] = (Resident(), BlockRing())
        for residency in residencies:
            started = perf_counter()
            stacks[residency.name] = residency.load(loader, lambda t: bind_block(t, execution), self.device)
            self.synchronise()
            print(f"{residency.name} loaded in {perf_counter() - started:.1f} s", flush=True)
        result: dict[str, Any] = {
            "blocks": facts.num_layers,
            "block_bytes": sum(spec.byte_count for spec in loader.specs().values()),
            "memory": {name: _plain(stack.memory()) for name, stack in stacks.items()},
            "host_to_device_gb_s": self.copy_rate(),
        }
        result["copy_floor_ms"] = result["block_bytes"] / result["host_to_device_gb_s"] / 1e6
        result["rows"] = {rows: self.in_turns(rows, facts, stacks) for rows in self.lengths}
        for stack in stacks.values():
            stack.close()
        return result

    def in_turns(self, rows: int, facts: DenoiserFacts, stacks: Mapping[str, BlockStack[Any]]) -> dict[str, Any]:
        sizes = Sizes(
            hidden=facts.hidden_size,
            heads=facts.num_attention_heads,
            head_dim=facts.attention_head_dim,
            ffn=facts.ffn_dim,
            rotary=6 * facts.rope_freq_dim,
        )
        sequence = random_sequence(rows, sizes, self.device)
        table = torch.randn(6, 6, facts.hidden_size, dtype=torch.bfloat16, device=self.device).mul_(0.1)
        attend = exact_attention("auto", rows, sizes, self.device)
        run = block_run(sequence, sizes, default_block_kernels(self.device), attend, 28_672)

        def passes(stack: BlockStack[Any], count: int) -> list[float]:
            """Milliseconds a block of each of `count` passes in a row, by the compute stream's own clock: nothing waits
            for the host in between, and copies queued ahead for a next pass are not counted."""
            self.synchronise()
            marks = [self.mark()]
            for _ in range(count):
                for block, weights in enumerate(stack.blocks(SilentObserver(), evaluation=0)):
                    run_block(weights, run, sequence.x, table, block=block, evaluation=0)
                marks.append(self.mark())
            self.synchronise()
            return [self.milliseconds(*pair) / facts.num_layers for pair in pairwise(marks)]

        cold = {name: passes(stack, 1)[0] for name, stack in stacks.items()}
        turns: list[dict[str, float]] = []
        for _ in range(self.turns):
            turns.append({name: statistics.median(passes(stack, PASSES)[1:]) for name, stack in stacks.items()})
        ratios = [turn["block-ring"] / turn["resident"] for turn in turns]
        medians = {name: statistics.median(turn[name] for turn in turns) for name in stacks}
        return {
            **medians,
            "attention": attend.report().backend,
            "ratio": medians["block-ring"] / medians["resident"],
            "ratio of each turn": {"median": statistics.median(ratios), "from": min(ratios), "to": max(ratios)},
            "turns": turns,
            **{f"first {name}": value for name, value in cold.items()},
        }

    def mark(self) -> Any:
        if not self.real:
            return perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def milliseconds(self, before: Any, after: Any) -> float:
        return float(before.elapsed_time(after)) if self.real else (after - before) * 1e3

    def copy_rate(self) -> float:
        size = 1 << 30 if self.real else 1 << 20
        source = torch.empty(size, dtype=torch.uint8, pin_memory=self.real)
        target = torch.empty(size, dtype=torch.uint8, device=self.device)
        target.copy_(source, non_blocking=True)
        self.synchronise()
        started = perf_counter()
        for _ in range(4):
            target.copy_(source, non_blocking=True)
        self.synchronise()
        return 4 * size / (perf_counter() - started) / 1e9

    def request(self, linear: str, attention: Attention, residency: Residency) -> dict[str, Any]:
        facts = (
            DenoiserFacts() if self.real else evolve(SMALL, freq_dim=16, time_embed_dim=32, time_embed_hidden_dim=32)
        )
        width, height = (1344, 768) if self.real else (64, 64)
        conditioning = self.conditioning(facts)
        started = perf_counter()
        with open_denoiser(
            denoiser_weights(facts, self.device),
            what="random",
            facts=facts,
            execution=execution_named(linear, default_row_kernels("auto", self.device)),
            kernels=default_block_kernels(self.device),
            residency=residency,
            device=self.device,
            dtype=torch.bfloat16,
            ffn_chunk_rows=28_672,
        ) as denoiser:
            self.synchronise()
            loading = perf_counter() - started
            results = {}
            for name, evaluations in (("warm-up", 1), ("measured", 4)):
                if self.real:
                    torch.cuda.reset_peak_memory_stats()
                watch = RequestWatch()
                _, report = denoise(plan_of(width, height, evaluations), conditioning, denoiser, attention, watch)
                self.synchronise()
                results[name] = {stage: value["elapsed_seconds"] for stage, value in watch.stages.items()}
            return {
                **results,
                "planned_gib": planned_bytes(denoiser, linear, 512 if self.real else 8, width, height) / GIB,
                "pinned_gib": denoiser.memory().pinned_allocated_bytes / GIB,
                "opening_s": loading,
                "weights_gib": denoiser.memory().device_weight_bytes / GIB,
                "peak_allocated_gib": torch.cuda.max_memory_allocated() / GIB if self.real else None,
                "peak_reserved_gib": torch.cuda.max_memory_reserved() / GIB if self.real else None,
                "dense_calls": report.dense_calls,
                "sparse_calls": report.sparse_calls,
            }

    def conditioning(self, facts: DenoiserFacts) -> Conditioning:
        rows = 512 if self.real else 8
        embeds = torch.randn(rows, facts.text_dim, device=self.device).to(torch.bfloat16)
        text = TextConditioning(embeds=embeds, tags=torch.ones(rows, dtype=torch.int64))
        return Conditioning(text=text, conditions=Conditions())

    @torch.inference_mode()
    def encoder(self) -> dict[str, Any]:
        """The text layers alone, as `transformers` runs them: one forward over 512 tokens."""
        from transformers import Qwen3VLTextConfig, Qwen3VLTextModel

        config = Qwen3VLTextConfig(
            vocab_size=151_936 if self.real else 64,
            hidden_size=5120 if self.real else 32,
            intermediate_size=25_600 if self.real else 64,
            num_hidden_layers=51 if self.real else 2,
            num_attention_heads=64 if self.real else 4,
            num_key_value_heads=8 if self.real else 2,
            head_dim=128 if self.real else 8,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": [24, 20, 20] if self.real else [2, 1, 1],
                "mrope_interleaved": True,
            },
        )
        with torch.device("meta"):
            model = Qwen3VLTextModel(config)
        rotary = type(model.rotary_emb)(config).to(self.device)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
        model = model.to_empty(device=self.device)
        model.rotary_emb = rotary
        for parameter in model.parameters():
            parameter.data.normal_(0.0, 0.01)
        tokens = torch.randint(0, config.vocab_size, (1, 512 if self.real else 8), device=self.device)
        seconds = []
        for _ in range(3):
            started = perf_counter()
            model(input_ids=tokens, use_cache=False)
            self.synchronise()
            seconds.append(perf_counter() - started)
        weights = sum(parameter.nbytes for parameter in model.parameters())
        return {"first_s": seconds[0], "later_s": min(seconds[1:]), "weights_gib": weights / GIB}


def planned_bytes(denoiser: Denoiser, linear: str, text_rows: int, width: int, height: int) -> int:
    """What `vflash plan` says of the denoising: weights on the device, tables of four evaluations, activations."""
    plan, facts = plan_of(width, height, 4), denoiser.facts
    rows = Rows(
        text=text_rows,
        condition=0,
        target_audio=2 * plan.length.audio_latents,
        target_video=plan.length.latent_frames * (height // 32) * (width // 32),
    )
    kept = denoiser.memory().device_weight_bytes + sum(tensor.nbytes for tensor in denoiser.auxiliary.values())
    run = denoise_bytes(facts, rows, Linear(linear), dtype_bytes=2, chunk_rows=28_672)
    return kept + table_bytes(facts, 4, 2) + run


def plan_of(width: int, height: int, evaluations: int) -> Plan:
    return Plan(
        mode=Mode.T2VA,
        canvas=Canvas(width=width, height=height),
        length=clip_length(5, clip_frames=17, clip_latents=5),
        schedule=Schedule(evaluations=evaluations),
        seed=0,
        denoiser="transformer",
        latent_height=height // 16,
        latent_width=width // 16,
        sample_rate_hz=32_000,
        hop=800,
    )


def _plain(memory: object) -> dict[str, int]:
    return {
        name: getattr(memory, name)
        for name in ("device_weight_bytes", "pinned_payload_bytes", "pinned_allocated_bytes")
    }


def mean_pooled_veda() -> Attention:
    return open_veda(
        None,
        DeviceDefaultAttention(),
        kernels="auto",
        dense_edge_layers=3,
        dense_steps=(),
        target_budget="ratio=0.1",
        reference_budget=None,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("bench_residency.json"), help="where the JSON goes")
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=SECTIONS)
    parser.add_argument("--rows", type=int, nargs="+", default=list(LENGTHS), help="lengths of section ring")
    parser.add_argument("--repeat", type=int, default=TURNS, help="turns of section ring at every length")
    options = parser.parse_args()
    bench = Bench(options.output, options.rows, options.repeat)
    sections: dict[str, Callable[[], Any]] = {
        "ring": bench.ring,
        "request": lambda: bench.request("bf16", DeviceDefaultAttention(), Resident()),
        "ring-request": lambda: bench.request("bf16", DeviceDefaultAttention(), BlockRing()),
        "veda-request": lambda: bench.request("w8a8", mean_pooled_veda(), Resident()),
        "encoder": bench.encoder,
    }
    for name in options.sections:
        if bench.real or name != "veda-request":
            bench.section(name, sections[name])
    return int(any("failed" in value for value in bench.report.values() if isinstance(value, dict)))


if __name__ == "__main__":
    sys.exit(main())
