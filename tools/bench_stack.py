"""The whole block stack at the model's real size, resident on one GPU: seconds an evaluation, memory.

    python tools/bench_stack.py --output stack.json

Random weights made on the device, through the product's own residency, binding and block; `--rows 38000` is about
1344x768 for 5 s. Needs about 40 GB for `bf16`, half for FP8. On a CPU it runs a small stack, to try the script itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

import torch
from attrs import frozen

from denoiser_bench.case import Sizes, block_run, random_sequence
from denoiser_bench.floor import exact_attention
from denoiser_bench.timing import GIB
from vflash.domain.model_facts import DenoiserFacts
from vflash.model.block import run_block
from vflash.model.load import bind_block, packed_specs
from vflash_adapters.block_kernels.device_default import default_block_kernels
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.linear.fp8 import Fp8WeightOnlyLinear, W8A8Linear, default_row_kernels
from vflash_adapters.residency.resident import Resident
from vflash_ports.linear import LinearExecution
from vflash_ports.weights import TensorSpec

SMALL = DenoiserFacts(
    num_attention_heads=4, attention_head_dim=32, hidden_size=64, num_layers=3, ffn_dim=96, rope_freq_dim=4
)


@frozen(kw_only=True, eq=False)
class RandomBlocks:
    """A `BlockLoader` that draws each block where it will live; matrices keep unit variance."""

    facts: DenoiserFacts
    execution: LinearExecution

    @property
    def count(self) -> int:
        return self.facts.num_layers

    def specs(self) -> Mapping[str, TensorSpec]:
        return packed_specs(self.facts, self.execution, torch.bfloat16)

    def load_into(self, index: int, out: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in out.items():
            if tensor.ndim == 1:
                tensor.normal_(1.0, 0.1)
            elif name.endswith(".weight"):
                drawn = torch.empty(tensor.shape, dtype=torch.bfloat16, device=tensor.device)
                packed = self.execution.pack(drawn.normal_().mul_(tensor.shape[1] ** -0.5))
                tensor.copy_(packed.weight)
                if packed.scales is not None:
                    out[name.removesuffix(".weight") + ".scale"].copy_(packed.scales)


@torch.inference_mode()
def measure(linear: str, rows: int, evaluations: int, chunk_rows: int, device: torch.device) -> dict[str, object]:
    """Load, one warm-up block, then every evaluation timed on its own."""
    facts = DenoiserFacts() if device.type == "cuda" else SMALL
    execution = execution_named(linear, default_row_kernels("auto", device))
    started = perf_counter()
    stack = Resident().load(RandomBlocks(facts=facts, execution=execution), lambda t: bind_block(t, execution), device)
    sizes = Sizes(
        hidden=facts.hidden_size,
        heads=facts.num_attention_heads,
        head_dim=facts.attention_head_dim,
        ffn=facts.ffn_dim,
        rotary=6 * facts.rope_freq_dim,
    )
    sequence = random_sequence(rows, sizes, device)
    table = torch.randn(6, 6, facts.hidden_size, dtype=torch.bfloat16, device=device).mul_(0.1)
    attend = exact_attention("auto", rows, sizes, device)
    run = block_run(sequence, sizes, default_block_kernels(device), attend, chunk_rows)
    run_block(next(iter(stack.blocks(run.observer, evaluation=0))), run, sequence.x, table, block=0, evaluation=0)
    synchronise(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    loaded = perf_counter() - started
    seconds = []
    for evaluation in range(evaluations):
        begun = perf_counter()
        for block, weights in enumerate(stack.blocks(run.observer, evaluation=evaluation)):
            run_block(weights, run, sequence.x, table, block=block, evaluation=evaluation)
        synchronise(device)
        seconds.append(perf_counter() - begun)
    result: dict[str, object] = {
        "linear": linear,
        "attention": attend.report().backend,
        "rows": rows,
        "blocks": facts.num_layers,
        "chunk_rows": chunk_rows,
        "load_and_warm_up_s": loaded,
        "evaluation_s": seconds,
        "total_s": sum(seconds),
        "weights_gib": stack.memory().device_weight_bytes / GIB,
        "finite": bool(sequence.x.isfinite().all()),
    }
    if device.type == "cuda":
        result["peak_allocated_gib"] = torch.cuda.max_memory_allocated() / GIB
        result["peak_reserved_gib"] = torch.cuda.max_memory_reserved() / GIB
        result["device"] = torch.cuda.get_device_name()
    stack.close()
    return result


def execution_named(linear: str, row_kernels: str) -> LinearExecution:
    if linear == "bf16":
        return Bf16Linear()
    return Fp8WeightOnlyLinear(row_kernels=row_kernels) if linear != "w8a8" else W8A8Linear(row_kernels=row_kernels)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="bench_stack.json", help="where the JSON goes")
    parser.add_argument("--linear", nargs="+", default=["bf16"], choices=["bf16", "fp8-weight-only", "w8a8"])
    parser.add_argument("--rows", type=int, default=38_000)
    parser.add_argument("--evaluations", type=int, default=4)
    parser.add_argument("--chunk-rows", type=int, default=28_672, help="as `ffn_chunk_rows` of the settings")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results = []
    for linear in options.linear:
        torch.manual_seed(0)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        results.append(measure(linear, options.rows, options.evaluations, options.chunk_rows, device))
        print(json.dumps(results[-1]), flush=True)
    Path(options.output).write_text(json.dumps(results, indent=1))
    return 0 if all(result["finite"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
