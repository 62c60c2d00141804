"""Video VAE decode at full size: diffusers' own against ours, and the floor under both, in one run.

    python tools/bench_vae.py --output bench_vae.json

Needs a CUDA device and diffusers 0.42.1; under 80 s on one H200, of which 18 s are setup. Random weights in the
released precision, 37 latent frames; medians of two runs after a warm-up of one window. In order of worth, until the
time is up: diffusers; `fused-fp8` and `fused` at the largest number of tiles; with `--torch-attention` `fused` on
torch's attention, for compute capability 9.0, which has a kernel of our own; the floor (the same GEMMs and the fastest
attention alone, BF16 and FP8, and the passes over memory); both decoders at the other numbers of tiles; `fused-fp8
fast`, with partial sums in reduced precision; the same on the other canvases; with `--compiled` the blocks through
torch.compile; diffusers' kernels on batches of tiles, which are to give equal pixels. Differences are against
diffusers' pixels of the same run. `load_average` says how quiet the host was: more than a few is too many to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from attrs import evolve

from vae_bench.differences import differences
from vae_bench.floor import BlockFloor
from vae_bench.random_vae import random_vae
from vflash_adapters.latent_codec.decode_windows import decode_windows
from vflash_adapters.latent_codec.decoder_kernels import DecoderKernels
from vflash_adapters.latent_codec.tile_attention import TORCH_KERNELS, SdpaTileAttention
from vflash_adapters.latent_codec.tile_grid import TileGrid
from vflash_adapters.latent_codec.video_decoders import fused_kernels, in_fp8
from vflash_adapters.latent_codec.vit_decoder import VitDecoder

GIB = float(2**30)
LATENT_FRAMES = 37
WINDOW, STEP = 7, 5


class Bench:
    """Variants in order of worth until the time is up; one that fails is reported and the rest goes on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.started = perf_counter()
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.expected: dict[str, torch.Tensor] = {}
        self.report: dict[str, Any] = {"environment": environment(), "canvases": {}, "floor": {}, "failed": {}}
        self.vae: Any = None

    def run(self) -> None:
        torch.manual_seed(0)
        self.vae = random_vae(self.device)
        self.synchronize()
        self.report["setup_seconds"] = perf_counter() - self.started
        fused = fused_kernels(self.vae, self.device)
        fp8, fast = (in_fp8(fused, self.device, fast_accum) for fast_accum in (False, True))
        (canvas, *canvases), (tiles, *others) = self.options.canvas, sorted(self.options.tiles, reverse=True)
        self.attempt(canvas, "diffusers", None)
        self.attempt(canvas, "fused-fp8", tiles, fp8)
        self.attempt(canvas, "fused", tiles, fused)
        if self.options.torch_attention:
            torchs = SdpaTileAttention(kernels=TORCH_KERNELS[self.device.type])
            self.attempt(canvas, "fused on torch's attention", tiles, evolve(fused, attention=torchs))
        for count in (tiles, *others):
            self.guarded(f"floor of {count} tiles", partial(self.floor, canvas, count, fused))
        for count in others:
            self.attempt(canvas, "fused-fp8", count, fp8)
            self.attempt(canvas, "fused", count, fused)
        self.attempt(canvas, "fused-fp8 fast", tiles, fast)
        for other in canvases:
            self.attempt(other, "diffusers", None)
            self.attempt(other, "fused-fp8", tiles, fp8)
            self.attempt(other, "fused", tiles, fused)
        if self.options.compiled:
            self.attempt(canvas, "compiled", tiles, scope=partial(compiled_blocks, self.vae))
        self.attempt(canvas, "diffusers' kernels", tiles)
        self.report["wall_seconds"] = perf_counter() - self.started

    def attempt(
        self,
        canvas: str,
        name: str,
        tiles: int | None,
        kernels: DecoderKernels | None = None,
        scope: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        def run() -> None:
            with scope():
                self.measure(canvas, name if tiles is None else f"{name}, {tiles} tiles", tiles, kernels)

        self.guarded(f"{canvas} {name}" if tiles is None else f"{canvas} {name}, {tiles} tiles", run)

    def guarded(self, what: str, run: Callable[[], None]) -> None:
        if perf_counter() - self.started > self.options.deadline_s:
            self.report["failed"][what] = "not run: out of time"
            return
        try:
            with torch.no_grad():
                run()
        except Exception:  # the rest of a paid run is worth more than the first failure, which is reported and exits 1
            self.report["failed"][what] = traceback.format_exc()
        self.write()

    def measure(self, canvas: str, name: str, tiles: int | None, kernels: DecoderKernels | None) -> None:
        latents = self.latents(canvas)
        decode(self.vae, latents[:, :, :WINDOW], tiles, kernels)
        runs = [self.timed(latents, tiles, kernels) for _ in range(2)]
        pixels = runs[-1].pop("pixels")
        del runs[0]["pixels"]
        figures: dict[str, Any] = {"seconds": median(run["seconds"] for run in runs), "runs": runs}
        if kernels is not None:
            figures["prepare_seconds"] = self.prepare_seconds(kernels)
        if tiles is None:
            self.report.setdefault("pixel_deviation", {})[canvas] = float(pixels.std())
            self.expected[canvas] = pixels
        elif canvas in self.expected:
            figures |= differences(pixels, self.expected[canvas])
            figures["times_faster"] = self.report["canvases"][canvas]["diffusers"]["seconds"] / figures["seconds"]
        self.report["canvases"].setdefault(canvas, {})[name] = figures
        print(canvas, name, {key: value for key, value in figures.items() if key != "runs"}, flush=True)

    def floor(self, canvas: str, tiles: int, kernels: DecoderKernels) -> None:
        latents = self.latents(canvas)
        grid = TileGrid.of(self.vae, latents)
        tokens = WINDOW * (grid.rows.size // grid.ratio) * (grid.columns.size // grid.ratio)
        tokens += self.vae.decoder.num_register_tokens + 1
        floor = BlockFloor(vae=self.vae, kernels=kernels, tiles=tiles, tokens=tokens, device=self.device)
        whole = len(grid) * (self.options.latent_frames - WINDOW + STEP) // STEP
        self.report["floor"][f"{tiles} tiles"] = found = floor.figures(whole)
        print(canvas, f"floor, {tiles} tiles", found["decode_seconds"], found["tera_per_second"], flush=True)

    def timed(self, latents: torch.Tensor, tiles: int | None, kernels: DecoderKernels | None) -> dict[str, Any]:
        """Wall seconds of a whole decode, whose pixels stay on the device; peaks count what was there before as 0."""
        self.synchronize()
        before = 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        started = perf_counter()
        pixels, first = decode(self.vae, latents, tiles, kernels)
        self.synchronize()
        seconds = perf_counter() - started
        peak = (torch.cuda.max_memory_allocated() - before) / GIB if self.device.type == "cuda" else None
        return {
            "seconds": seconds,
            "first_clip_seconds": first - started,
            "peak_gib": peak,
            "load_average": os.getloadavg()[0],
            "pixels": pixels,
        }

    def prepare_seconds(self, kernels: DecoderKernels) -> float:
        """What a decoder copies and quantises for one clip; it is in the seconds of the decode too."""
        self.synchronize()
        started = perf_counter()
        decoder = VitDecoder(self.vae, kernels)
        self.synchronize()
        seconds = perf_counter() - started
        del decoder
        return seconds

    def latents(self, canvas: str) -> torch.Tensor:
        width, height = (int(side) // 16 for side in canvas.split("x"))
        generator = torch.Generator(self.device).manual_seed(1)
        shape = (1, 24, self.options.latent_frames, height, width)
        return torch.randn(shape, generator=generator, device=self.device)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def write(self) -> None:
        Path(self.options.output).write_text(json.dumps(self.report, indent=1))


def decode(
    vae: Any, latents: torch.Tensor, tiles: int | None, kernels: DecoderKernels | None
) -> tuple[torch.Tensor, float]:
    """All pixels [1, 3, F, H, W] on the device, and the clock when the first of them could be handed on."""
    if tiles is None:
        pixels: torch.Tensor = vae.decode(latents, return_dict=False)[0]
        return pixels, finished(pixels)
    clips, first = [], 0.0
    tile_decoder = None if kernels is None else VitDecoder(vae, kernels)
    for clip in decode_windows(vae, latents, tiles_at_once=tiles, decode=tile_decoder):
        first = first or finished(clip)
        clips.append(clip)
    return torch.cat(clips, dim=2), first


def finished(pixels: torch.Tensor) -> float:
    if pixels.device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter()


@contextmanager
def compiled_blocks(vae: Any) -> Iterator[None]:
    """Inside, each block runs compiled; one compilation serves them all, because they differ in weights alone."""
    blocks = list(vae.decoder.transformer_blocks)
    for block in blocks:
        block.compile(dynamic=False)
    try:
        yield
    finally:
        for block in blocks:
            block._compiled_call_impl = None


def environment() -> dict[str, Any]:
    import diffusers

    versions = {"python": platform.python_version(), "torch": torch.__version__, "diffusers": diffusers.__version__}
    host = {"cores": os.cpu_count(), "load_average": os.getloadavg()}
    return versions | host | ({"device": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="bench_vae.json", help="where the JSON goes")
    parser.add_argument("--tiles", type=int, nargs="+", default=[28, 8], help="tiles decoded in one batch")
    parser.add_argument("--canvas", nargs="+", default=["1344x768", "928x512"], help="WIDTHxHEIGHT, multiples of 32")
    parser.add_argument("--latent-frames", type=int, default=LATENT_FRAMES, help="5n + 2")
    parser.add_argument("--compiled", action="store_true", help="torch.compile each block too; takes half a minute")
    parser.add_argument("--torch-attention", action="store_true", help="time fused on torch's attention too")
    parser.add_argument("--deadline-s", type=float, default=70.0, help="start no measurement after this many seconds")
    bench = Bench(parser.parse_args())
    bench.run()
    bench.write()
    for name, text in bench.report["failed"].items():
        print(f"FAILED {name}: {text.strip().splitlines()[-1][:300]}")
    return 1 if bench.report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
