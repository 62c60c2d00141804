"""Video VAE decode at full size: diffusers' own against tiles in batches, in one run.

    python tools/bench_vae.py --output bench_vae.json

Needs a CUDA device and diffusers 0.42.1; under 90 s on one H200. Random weights in the released precision, 37 latent
frames; medians of two runs after a warm-up of one window. At the first number of tiles above 1, on every canvas: the
batches alone, and `fused`, the product's default on CUDA; on the first canvas alone: fused with the flash attention
alone, with `--compiled` the blocks through torch.compile, the other numbers of tiles, fused and not. Differences are
against diffusers' pixels of the same run, in the VAE's output space, whose spread the report gives; `tiles 1` does the
same work in the same order and is to be equal.
"""

from __future__ import annotations

import argparse
import json
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
from torch.nn.attention import SDPBackend

from vflash_adapters.latent_codec.decode_windows import decode_windows
from vflash_adapters.latent_codec.load_vae import VIDEO_VAE
from vflash_adapters.latent_codec.video_decoders import fused_kernels
from vflash_adapters.latent_codec.vit_decoder import DecoderKernels, VitDecoder

GIB = float(2**30)
LATENT_FRAMES = 37
SMALL = {
    "block_out_channels": (4, 4, 4, 4, 4, 4),
    "norm_num_groups": 2,
    "layers_per_block": 1,
    "decoder_num_layers": 2,
    "decoder_num_attention_heads": 2,
    "decoder_attention_head_dim": 16,
}
"""On a CPU, to try the script itself."""


def random_vae(device: torch.device) -> Any:
    """diffusers' default, which is the released size, filled on the device; BF16 but for the modules kept in FP32."""
    from diffusers import AutoencoderKLMiniMaxH3

    with device:
        make: Any = AutoencoderKLMiniMaxH3
        vae: Any = make(**({} if device.type == "cuda" else SMALL))
    for name, parameter in vae.named_parameters():
        parameter.requires_grad_(requires_grad=False)
        if name.endswith(("scale1", "scale2")):
            parameter.fill_(0.1)  # zero would switch the blocks off
        if VIDEO_VAE.float32_modules.isdisjoint(name.split(".")):
            parameter.data = parameter.data.to(torch.bfloat16)
    return vae.eval()


class Bench:
    """Variants in order of worth until the time is up; one that fails is reported and the rest goes on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.started = perf_counter()
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.expected: dict[str, torch.Tensor] = {}
        self.report: dict[str, Any] = {"environment": environment(), "canvases": {}, "failed": {}}

    def run(self) -> None:
        torch.manual_seed(0)
        vae = random_vae(self.device)
        self.synchronize()
        self.report["setup_seconds"] = perf_counter() - self.started
        every, first = self.options.canvas, self.options.canvas[:1]
        batch = next((tiles for tiles in self.options.tiles if tiles > 1), 1)
        self.measure_all("diffusers", vae, nullcontext, every, tiles=None)
        self.measure_all(f"tiles {batch}", vae, nullcontext, every, tiles=batch)
        self.measure_all(f"tiles {batch} fused", vae, nullcontext, every, tiles=batch, kernels=self.kernels())
        if self.device.type == "cuda":
            flash = evolve(self.kernels(), attention=(SDPBackend.FLASH_ATTENTION,))
            self.measure_all(f"tiles {batch} fused flash", vae, nullcontext, first, tiles=batch, kernels=flash)
        if self.options.compiled:
            self.measure_all(f"tiles {batch} compiled", vae, partial(compiled_blocks, vae), first, tiles=batch)
        for tiles in self.options.tiles:
            if tiles not in (batch, 1):
                name = f"tiles {tiles} fused"
                self.measure_all(name, vae, nullcontext, first, tiles=tiles, kernels=self.kernels())
        for tiles in self.options.tiles:
            if tiles != batch:
                self.measure_all(f"tiles {tiles}", vae, nullcontext, first, tiles=tiles)
        self.report["wall_seconds"] = perf_counter() - self.started

    def kernels(self) -> DecoderKernels:
        return fused_kernels(self.device)

    def measure_all(
        self,
        name: str,
        vae: Any,
        scope: Callable[[], AbstractContextManager[None]],
        canvases: list[str],
        *,
        tiles: int | None,
        kernels: DecoderKernels | None = None,
    ) -> None:
        try:
            with torch.no_grad(), scope():
                for canvas in canvases:
                    if perf_counter() - self.started > self.options.deadline_s:
                        self.report["failed"][f"{canvas} {name}"] = "not run: out of time"
                    else:
                        self.measure(canvas, name, vae, tiles, kernels)
        except Exception:  # the rest of a paid run is worth more than the first failure, which is reported and exits 1
            self.report["failed"][name] = traceback.format_exc()

    def measure(self, canvas: str, name: str, vae: Any, tiles: int | None, kernels: DecoderKernels | None) -> None:
        width, height = (int(side) // 16 for side in canvas.split("x"))
        generator = torch.Generator(self.device).manual_seed(1)
        frames = self.options.latent_frames
        latents = torch.randn(1, 24, frames, height, width, generator=generator, device=self.device)
        decode(vae, latents[:, :, :7], tiles, kernels)
        runs = [self.timed(vae, latents, tiles, kernels) for _ in range(2)]
        pixels = runs[-1].pop("pixels")
        del runs[0]["pixels"]
        figures: dict[str, Any] = {"seconds": median(run["seconds"] for run in runs), "runs": runs}
        if tiles is None:
            self.report.setdefault("pixel_deviation", {})[canvas] = float(pixels.std())
            self.expected[canvas] = pixels
        elif canvas in self.expected:
            figures |= differences(pixels, self.expected[canvas])
            reference = self.report["canvases"][canvas]["diffusers"]["seconds"]
            figures["times_faster"] = reference / figures["seconds"]
        self.report["canvases"].setdefault(canvas, {})[name] = figures
        print(canvas, name, {key: value for key, value in figures.items() if key != "runs"}, flush=True)
        Path(self.options.output).write_text(json.dumps(self.report, indent=1))

    def timed(
        self, vae: Any, latents: torch.Tensor, tiles: int | None, kernels: DecoderKernels | None
    ) -> dict[str, Any]:
        """Wall seconds of a whole decode, whose pixels stay on the device; peaks count what was there before as 0."""
        self.synchronize()
        before = 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        started = perf_counter()
        pixels, first = decode(vae, latents, tiles, kernels)
        self.synchronize()
        seconds = perf_counter() - started
        peak = (torch.cuda.max_memory_allocated() - before) / GIB if self.device.type == "cuda" else None
        return {"seconds": seconds, "first_clip_seconds": first - started, "peak_gib": peak, "pixels": pixels}

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


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


def differences(pixels: torch.Tensor, expected: torch.Tensor) -> dict[str, Any]:
    """Frame by frame, so that no second copy in float64 is needed."""
    pairs = [
        (found.double(), wanted.double()) for found, wanted in zip(pixels.unbind(2), expected.unbind(2), strict=True)
    ]
    squares = sum(float((found - wanted).square().sum()) for found, wanted in pairs)
    return {
        "equal": torch.equal(pixels, expected),
        "largest_difference": max(float((found - wanted).abs().max()) for found, wanted in pairs),
        "relative_error": (squares / sum(float(wanted.square().sum()) for _, wanted in pairs)) ** 0.5,
    }


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


def environment() -> dict[str, str]:
    import diffusers

    versions = {"python": platform.python_version(), "torch": torch.__version__, "diffusers": diffusers.__version__}
    return versions | ({"device": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="bench_vae.json", help="where the JSON goes")
    parser.add_argument("--tiles", type=int, nargs="+", default=[8, 16, 32, 1], help="tiles decoded in one batch")
    parser.add_argument("--canvas", nargs="+", default=["1344x768", "928x512"], help="WIDTHxHEIGHT, multiples of 32")
    parser.add_argument("--latent-frames", type=int, default=LATENT_FRAMES, help="5n + 2")
    parser.add_argument("--compiled", action="store_true", help="torch.compile each block too; takes half a minute")
    parser.add_argument("--deadline-s", type=float, default=75.0, help="start no measurement after this many seconds")
    bench = Bench(parser.parse_args())
    bench.run()
    Path(bench.options.output).write_text(json.dumps(bench.report, indent=1))
    for name, text in bench.report["failed"].items():
        print(f"FAILED {name}: {text.strip().splitlines()[-1][:300]}")
    return 1 if bench.report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
