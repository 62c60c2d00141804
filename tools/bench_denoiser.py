"""One block of the denoiser at the model's real sizes: the peer, the floor and ours in one run.

    python tools/bench_denoiser.py --output bench.json

Needs a CUDA device and diffusers 0.42.1 (`--no-peer` runs without it); under six minutes on one H200. Random weights
and inputs, medians, dense attention. `--output` gets everything; what is printed last is the summary.

Predicted before the first run on one H200 (copy 4.0 TB/s, BF16 GEMM 700, FP8 GEMM 1,300, cuDNN attention 580 TFLOP/s):
norm + modulate 0.21 ms, q/k norm + rotary 0.56, gate + residual 0.32, SwiGLU 0.84 at 38,000 rows, if each kernel moves
3.9 TB/s; so the exact block is 2.4 ms above its floor (1.022) at 38,000 rows and 1.03 at 18,175, W8A8 2.3 ms (1.025).
Weight-only restores 385 M weights at 7 bytes each: 0.7 ms above BF16. Peak above weights 2.4 GiB: x, q, k, v and the
attention output; writing each head group's output over its q saves 0.3 GiB for under 0.5 ms. FFN chunks of 11,264 rows
cost under 1 %. Launch overhead below 1 % at 4,096 rows: 13 launches of 10 us each hide under 5.5 ms of work.
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
from time import perf_counter
from typing import Any

import torch

from denoiser_bench.blocks import OurBlock, errors
from denoiser_bench.case import RawBlock, Sequence, Sizes, modulation_table, random_block, random_sequence
from denoiser_bench.floor import measure_floor
from denoiser_bench.kernels import KernelInputs, kernel_errors, kernel_times, launch_sweep, quantiser_figures
from denoiser_bench.peer import peer_block, peer_call
from denoiser_bench.timing import allocated_bytes, milliseconds, peak_gib
from vflash.model.block import BlockWeights
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.linear.fp8 import Fp8WeightOnlyLinear, W8A8Linear
from vflash_ports.block_kernels import BlockKernels

LENGTHS = (38000, 18175, 55413, 4096, 8000)
COMPILED_LENGTHS = (38000, 18175, 55413)
CHUNK_ROWS = 16384  # as the product's default
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
        self.report["kernels"] = self.section("kernels", lambda: self.kernel_report(block, kernels))
        variants = self.variants(block)
        for rows in self.options.rows:
            figures = self.report["lengths"].setdefault(str(rows), {})
            sequence = random_sequence(rows, self.sizes, self.device)
            self.length(figures, rows, block, kernels, variants, sequence)
        if self.device.type == "cuda" and not self.options.no_peer:
            for rows in (rows for rows in COMPILED_LENGTHS if rows in self.options.rows):
                sequence = random_sequence(rows, self.sizes, self.device)
                self.report["lengths"][str(rows)]["peer_compiled"] = self.section(
                    f"{rows} peer compiled", partial(self.compiled_peer, block, sequence)
                )

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
        w8a8 = W8A8Linear(activation_quantizer=quantiser)
        self.packed = {name: w8a8.pack(weight) for name, weight in block.linears.items()}
        return {
            "bf16": block.bound(Bf16Linear()),
            "fp8-weight-only": block.stored(Fp8WeightOnlyLinear(), self.packed),
            "w8a8": block.stored(w8a8, self.packed),
            "w8a8 fast": block.stored(W8A8Linear(activation_quantizer=quantiser, fast_accum=True), self.packed),
        }

    def length(
        self,
        figures: dict[str, Any],
        rows: int,
        block: RawBlock,
        kernels: BlockKernels,
        variants: dict[str, BlockWeights],
        sequence: Sequence,
    ) -> None:
        def section(name: str, run: Callable[[], Any]) -> Any:
            return self.section(f"{rows} {name}", run)

        floor = section("floor", lambda: measure_floor(rows, self.sizes, block, self.packed, self.device))
        if floor is None:
            return
        figures["floor"] = {
            "bf16_ms": floor.total(floor.bf16),
            "w8a8_ms": floor.total(floor.fp8),
            "w8a8_fast_ms": floor.total(floor.fp8_fast),
            "attention_ms": floor.attention,
            "bf16_gemms_ms": floor.bf16,
            "fp8_gemms_ms": floor.fp8,
            "fp8_fast_gemms_ms": floor.fp8_fast,
        }
        ours = OurBlock(
            sizes=self.sizes,
            sequence=sequence,
            table=modulation_table(block, sequence, self.sizes),
            kernels=kernels,
            attention=floor.best_attention(),
            device=self.device,
            base_bytes=allocated_bytes(self.device) - sequence.x.nbytes,
        )
        figures["bf16"] = section("bf16", lambda: ours.parts_table(variants["bf16"]))
        chunk = ours.chunk_rows(-(-rows // CHUNK_ROWS))
        for name in ("fp8-weight-only", "w8a8", "w8a8 fast"):
            figures[name] = section(name, partial(ours.figures, variants[name], chunk=chunk))
        if self.device.type == "cuda":
            figures["head groups"] = section(
                "head groups",
                lambda: {g: ours.figures(variants["bf16"], chunk=chunk, head_groups=g) for g in (1, 2, 4)},
            )
            if rows <= 8000:
                figures["graph"] = section("graph", lambda: ours.graph_figures(variants["bf16"]))
                figures["graph w8a8"] = section("graph w8a8", lambda: ours.graph_figures(variants["w8a8"]))
        ours.refresh()
        peer = None if self.options.no_peer else section("peer", lambda: self.eager_peer(block, sequence, ours))
        if peer is not None:
            figures["peer_eager"] = {"ms": peer["ms"], "peak_gib": peer["peak_gib"]}
        figures["errors"] = section("errors", lambda: errors(ours, variants, peer and peer["output"]))

    @torch.inference_mode()
    def eager_peer(self, block: RawBlock, sequence: Sequence, ours: OurBlock) -> dict[str, Any]:
        call = peer_call(peer_block(block, self.sizes), sequence)
        time = milliseconds(call, self.device, repeats=5)
        return {"ms": time, "peak_gib": peak_gib(call, self.device, ours.base_bytes), "output": call()[0].clone()}

    @torch.inference_mode()
    def compiled_peer(self, block: RawBlock, sequence: Sequence) -> dict[str, float]:
        torch._dynamo.reset()
        base = allocated_bytes(self.device) - sequence.x.nbytes
        call = peer_call(torch.compile(peer_block(block, self.sizes), dynamic=False), sequence)
        time = milliseconds(call, self.device, repeats=5)
        return {"ms": time, "peak_gib": peak_gib(call, self.device, base)}


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
    floor = figures.get("floor")
    if not floor:
        return [f"{rows}: no floor"]
    gemms = " ".join(f"{name} {ms:.2f}" for name, ms in floor["bf16_gemms_ms"].items())
    attention = " ".join(f"{name} {ms:.2f}" for name, ms in floor["attention_ms"].items())
    lines = [
        f"== {rows} rows: floor bf16 {floor['bf16_ms']:.2f}, w8a8 {floor['w8a8_ms']:.2f} "
        f"(fast {floor['w8a8_fast_ms']:.2f}) | {gemms} | {attention}"
    ]
    for parts, made in (figures.get("bf16") or {}).items():
        lines.append(_row(f"bf16, rows in {parts} parts", made, floor["bf16_ms"]))
    for groups, made in (figures.get("head groups") or {}).items():
        lines.append(_row(f"bf16, {groups} head groups in place", made, floor["bf16_ms"]))
    for name, base in (("fp8-weight-only", "bf16_ms"), ("w8a8", "w8a8_ms"), ("w8a8 fast", "w8a8_fast_ms")):
        lines.append(_row(name, figures.get(name), floor[base]))
    for name in ("peer_eager", "peer_compiled"):
        lines.append(_row(name, figures.get(name), floor["bf16_ms"]))
    lines += [f"  {name}: {figures[name]}" for name in ("graph", "graph w8a8", "errors") if figures.get(name)]
    return lines


def _row(name: str, made: dict[str, float] | None, floor_ms: float) -> str:
    if made is None:
        return f"  {name}: none"
    return f"  {name:30} {made['ms']:8.2f} ms  x{made['ms'] / floor_ms:.3f}  peak {made['peak_gib']:.2f} GiB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="bench_denoiser.json", help="where the JSON goes")
    parser.add_argument("--rows", type=int, nargs="+", default=list(LENGTHS), help="packed rows to measure")
    parser.add_argument("--no-peer", action="store_true", help="leave diffusers out")
    parser.add_argument("--deadline-s", type=float, default=330.0, help="start no section after this many seconds")
    bench = Bench(parser.parse_args())
    bench.run()
    Path(bench.options.output).write_text(json.dumps(bench.report, indent=1))
    print(summary(bench.report))
    return 1 if bench.report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
