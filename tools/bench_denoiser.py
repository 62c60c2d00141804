"""One block of the denoiser at the model's real sizes: the peer, the floor and ours in one run.

    python tools/bench_denoiser.py --output bench.json

Needs a CUDA device and diffusers 0.42.1 (`--no-peer` runs without it); under six minutes on one H200. Random weights
and inputs, medians, dense attention. `--output` gets everything; what is printed last is the summary.

Predictions and outcomes are in docs/benchmarks/2026-11-denoiser-block.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

import torch

from denoiser_bench.blocks import OurBlock, errors
from denoiser_bench.case import RawBlock, Sequence, Sizes, modulation_table, random_block, random_sequence
from denoiser_bench.floor import ATTENTION, fastest_attention, floor_calls, floor_chains
from denoiser_bench.kernels import KernelInputs, kernel_errors, kernel_times, launch_sweep, quantiser_figures
from denoiser_bench.peer import peer_block, peer_call
from denoiser_bench.timing import allocated_bytes, interleaved, milliseconds, peak_gib, sustained
from vflash.model.block import BlockWeights
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.linear.fp8 import Fp8WeightOnlyLinear, W8A8Linear
from vflash_ports.block_kernels import BlockKernels

LENGTHS = (38000, 18175, 55413, 4096, 8000)
COMPILED_LENGTHS = (38000, 18175, 55413)
CHUNK_ROWS = 28672  # as the product's default
SMALL = Sizes(hidden=64, heads=4, head_dim=32, ffn=96, time_dim=48, rotary=24)  # on a CPU, to try the script itself


class Bench:
    """Sections run in order of worth until the time is up; a section that fails is reported and the rest goes on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.sizes = (
            Sizes()
            if self.device.type == "cuda"
            else Sizes(hidden=64, heads=4, head_dim=32, ffn=96, time_dim=48, rotary=24)
        )
        self.options = options
        self.started = perf_counter()
        self.report: dict[str, Any] = {"environment": environment(), "lengths": {}, "seconds": {}, "failed": {}}

    def section(self, name: str, run: Callable[[], Any]) -> Any:
        begun = perf_counter()
        if begun - self.started > self.options.deadline_s:
            self.report["failed"][name] = "not run: out of time"
            return None
        try:
            return run()
        except Exception:  # the rest of a paid run is worth more than the first failure, which is reported and exits 1
            self.report["failed"][name] = traceback.format_exc()
            print(f"{name} failed: {traceback.format_exc().strip().splitlines()[-1][:200]}", flush=True)
            return None
        finally:
            self.report["seconds"][name] = round(perf_counter() - begun, 1)
            print(f"{name}: {self.report['seconds'][name]} s", flush=True)
            Path(self.options.output).write_text(json.dumps(self.report, indent=1))

    def run(self) -> None:
        torch.manual_seed(0)
        block = random_block(self.sizes, self.device)
        kernels = self.kernels()
        self.report["copy_tb_s"] = self.section("copy", self.copy_rate)
        if not self.options.blocks_only:
            self.report["kernels"] = self.section("kernels", lambda: self.kernel_report(block, kernels))
        variants = self.variants(block)
        for rows in self.options.rows:
            figures = self.report["lengths"].setdefault(str(rows), {})
            self.length(figures, rows, block, kernels, variants)

    def kernels(self) -> BlockKernels:
        if self.device.type != "cuda":
            return TorchBlockKernels()
        from vflash_adapters.block_kernels.triton_kernels import TritonBlockKernels

        return TritonBlockKernels()

    def copy_rate(self) -> float:
        source = torch.randn(2**30 if self.device.type == "cuda" else 2**20, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / milliseconds(lambda: target.copy_(source), self.device) / 1e9

    def kernel_report(self, block: RawBlock, kernels: BlockKernels) -> dict[str, Any]:
        def inputs(rows: int) -> KernelInputs:
            sequence = random_sequence(rows, self.sizes, self.device)
            return KernelInputs(block, sequence, modulation_table(block, sequence, self.sizes), self.sizes)

        wide = inputs(self.options.rows[0])
        report: dict[str, Any] = {"times": kernel_times(wide, kernels, self.device)}
        if self.device.type == "cuda":
            report["quantise"] = quantiser_figures(wide, self.device)
            report["sweep"] = launch_sweep(wide, self.device)
        del wide
        report["errors"] = kernel_errors(lambda: inputs(512), kernels)
        return report

    def variants(self, block: RawBlock) -> dict[str, BlockWeights]:
        quantiser = "triton" if self.device.type == "cuda" else "torch"
        w8a8 = W8A8Linear(row_kernels=quantiser)
        self.packed = {name: w8a8.pack(weight) for name, weight in block.linears.items()}
        return {
            "bf16": block.bound(Bf16Linear()),
            "fp8-weight-only": block.stored(Fp8WeightOnlyLinear(row_kernels=quantiser), self.packed),
            "w8a8": block.stored(w8a8, self.packed),
            "w8a8 fast": block.stored(W8A8Linear(row_kernels=quantiser, fast_accum=True), self.packed),
        }

    def length(
        self,
        figures: dict[str, Any],
        rows: int,
        block: RawBlock,
        kernels: BlockKernels,
        variants: dict[str, BlockWeights],
    ) -> None:
        """Peaks; then floor, peer and ours, each kept up for a while, twice; then launch overhead and errors."""
        sequence = random_sequence(rows, self.sizes, self.device)
        ours = OurBlock(
            sizes=self.sizes,
            sequence=sequence,
            table=modulation_table(block, sequence, self.sizes),
            kernels=kernels,
            attention="auto",
            device=self.device,
        )
        figures["attention"] = ours.attention_backend()
        base = allocated_bytes(self.device) - sequence.x.nbytes  # an activation peak counts x, in the peer's block too
        calls = self.block_calls(rows, ours, variants)
        calls |= self.section(f"{rows} peer", lambda: self.peer_calls(rows, block, sequence)) or {}
        figures["peak_gib"] = self.section(
            f"{rows} peaks", lambda: {name: peak_gib(call, self.device, base) for name, call in calls.items()}
        )
        parts = floor_calls(rows, self.sizes, block, self.packed, self.device)
        figures["part_ms"] = self.section(f"{rows} parts", partial(interleaved, parts, self.device, rounds=3))
        chains: dict[str, Callable[[], object]] = {}
        if figures["part_ms"]:
            fastest = fastest_attention(figures["part_ms"])
            figures["floor_attention"] = fastest.removeprefix(ATTENTION)
            chains = floor_chains(parts, block, fastest)
        figures["ms"] = self.section(
            f"{rows} times", partial(sustained, chains | calls, self.device, seconds=self.options.seconds, rounds=2)
        )
        del parts, chains
        if self.device.type == "cuda" and rows <= 8000:
            for name in ("bf16", "w8a8"):
                figures[f"graph {name}"] = self.section(
                    f"{rows} graph {name}", partial(ours.graph_figures, variants[name])
                )
        ours.refresh()
        eager = calls.get("peer eager")
        figures["errors"] = self.section(f"{rows} errors", lambda: errors(ours, variants, eager and eager()[0]))

    def block_calls(
        self, rows: int, ours: OurBlock, variants: dict[str, BlockWeights]
    ) -> dict[str, Callable[[], torch.Tensor]]:
        """Every variant as the product runs it, and plain BF16 also in other numbers of parts."""
        parts = -(-rows // CHUNK_ROWS)
        calls = {name: ours.call(weights, parts=parts) for name, weights in variants.items()}
        if rows > CHUNK_ROWS // 2:
            other = 1 if parts > 1 else 2
            calls[f"bf16 in {other} part"] = ours.call(variants["bf16"], parts=other)
            calls["bf16, attention not in place"] = ours.call(variants["bf16"], parts=parts, in_place=False)
        return calls

    def peer_calls(self, rows: int, block: RawBlock, sequence: Sequence) -> dict[str, Callable[[], torch.Tensor]]:
        if self.options.no_peer:
            return {}
        calls = {"peer eager": peer_call(peer_block(block, self.sizes), sequence)}
        if self.device.type == "cuda" and rows in COMPILED_LENGTHS:
            torch._dynamo.reset()
            compiled = torch.compile(peer_block(block, self.sizes), dynamic=False)
            calls["peer compiled"] = peer_call(compiled, sequence)
            calls["peer compiled"]()
        return calls


def environment() -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.cuda.is_available():
        import triton

        versions |= {"device": torch.cuda.get_device_name(), "triton": triton.__version__}
    return versions


def summary(report: dict[str, Any]) -> str:
    """The compact table: milliseconds, ratio to the floor, peaks."""
    lines = [f"copy {report['copy_tb_s'] or 0:.2f} TB/s"]
    kernels = report.get("kernels") or {}
    for name, time in kernels.get("times", {}).items():
        error = kernels.get("errors", {}).get(name, {})
        lines.append(
            f"{name:18} {time['ms']:7.3f} ms {time['gb_s']:6.0f} GB/s  error {error.get('error', 0):.1e} "
            f"(torch {error.get('reference_error', 0):.1e}), {100 * error.get('differs', 0):.3f} % differ"
        )
    lines.append(f"quantise {kernels.get('quantise')}")
    for name, times in kernels.get("sweep", {}).items():
        lines.append(f"{name}: " + "; ".join(f"{setting} {ms:.3f}" for setting, ms in times.items()))
    for rows, figures in report["lengths"].items():
        lines += _length_lines(rows, figures)
    lines += [f"FAILED {name}: {text.strip().splitlines()[-1][:200]}" for name, text in report["failed"].items()]
    return "\n".join(lines)


def _length_lines(rows: str, figures: dict[str, Any]) -> list[str]:
    times, peaks = figures.get("ms"), figures.get("peak_gib") or {}
    if times is None:
        return [f"== {rows} rows: no times"]
    lines = [f"== {rows} rows"]
    lines.append(f"  block with {figures['attention']}, floor with {figures.get('floor_attention')}")
    lines.append("  alone: " + ", ".join(f"{name} {ms:.2f}" for name, ms in (figures["part_ms"] or {}).items()))
    for name, samples in times.items():
        floor = times.get({"w8a8": "floor fp8", "w8a8 fast": "floor fp8 fast"}.get(name, "floor bf16"))
        ratio = f"x{mean(samples) / mean(floor):.3f}" if floor else "no floor"
        peak = f"peak {peaks[name]:.2f} GiB" if name in peaks else ""
        rounds = " / ".join(f"{ms:.2f}" for ms in samples)
        lines.append(f"  {name:30} {mean(samples):8.2f} ms ({rounds})  {ratio}  {peak}")
    lines += [f"  {name}: {value}" for name, value in figures.items() if name.startswith(("graph", "errors"))]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="bench_denoiser.json", help="where the JSON goes")
    parser.add_argument("--rows", type=int, nargs="+", default=list(LENGTHS), help="packed rows to measure")
    parser.add_argument("--no-peer", action="store_true", help="leave diffusers out")
    parser.add_argument("--blocks-only", action="store_true", help="leave the single kernels out")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each call is kept up for a time")
    parser.add_argument("--deadline-s", type=float, default=330.0, help="start no section after this many seconds")
    bench = Bench(parser.parse_args())
    with torch.inference_mode():
        bench.run()
    Path(bench.options.output).write_text(json.dumps(bench.report, indent=1))
    print(summary(bench.report))
    return 1 if bench.report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
