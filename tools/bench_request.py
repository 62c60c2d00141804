"""Whole requests on one GPU: prompt in, MP4 out, through the product's own container and engine.

    python tools/bench_request.py --output request.json

A full-size random MiniMax-H3 is given at the container's ports: a model folder of configs, a `WeightOpener` that draws
each tensor on the device when it is asked for, and a text encoder loader; everything else, FFmpeg included, is what
`vflash generate` runs. Text to video and sound, 512 rows of text, 1344x768, 5 s, 4 evaluations. Each section opens one
pipeline, warms it up at 448x256, then times the large request; sections in order of worth:

    exact          BF16, resident, `--video-decoder fused`, `--media-video-input pipe`; the large request three times,
                   with equal latents, the last under `profile_denoise`, whose profile must add up
    approximate    the same with W8A8, mean-pooled Veda and `--video-decoder fused-fp8`
    default        BF16, resident, diffusers' video decoder, the `file` sink; latents must be the exact section's
    fast-sums      approximate with `--fp8-fast-accum`, once
    all-sparse     fast-sums with `--veda-dense-edge-layers 0`, once
    quick-encoder  all-sparse with `--media-preset veryfast`, once
    peer           one dense step of diffusers' transformer, all its blocks, the same weights and packed rows
    decoders       the exact section's latents through every video decoder, and through diffusers' own a tile at a time
    swap           BF16 from the block ring, encoder and VAEs swapped; latents must be the exact section's

On a CPU a tiny model runs through the same code. Needs 110 GiB of device memory and, with `swap`, of host memory too.

Expected on one H200 with a busy host, computed from the run of 29 November 2026 (docs/benchmarks/2026-11-request.json):
15 s until it begins, exact 115 s, approximate 65 s, default 45 s, fast-sums, all-sparse and quick-encoder 25 s each,
peer 20 s, decoders 40 s, swap 70 s.
What does not fit before the deadline is left out and named.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from request_bench.run import OutOfTimeError, Run
from request_bench.sections import SECTIONS
from request_bench.sizes import scale_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("bench_request.json"), help="where the JSON goes")
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=SECTIONS, metavar="SECTION")
    parser.add_argument("--deadline-s", type=float, default=300.0, help="start nothing after this many seconds")
    parser.add_argument("--folder", type=Path, help="where clips are written; a temporary folder without it")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report: dict[str, Any] = {"environment": environment(device), "sections": {}}
    with tempfile.TemporaryDirectory(prefix="vflash-request-", dir=options.folder) as folder:
        run = Run(
            scale=scale_of(device),
            folder=Path(folder),
            output=options.output,
            deadline_s=options.deadline_s,
            report=report,
        )
        return 0 if measure(run, options.sections) else 1


def measure(run: Run, names: Sequence[str]) -> bool:
    """Whether every section ran to its end: one that fails, or has no time left, is reported, and the rest goes on."""
    for name in names:
        figures: dict[str, Any] = {}
        run.report["sections"][name] = figures
        begun = perf_counter()
        try:
            run.check_time(name, SECTIONS[name].expected_s if run.scale.real else 0.0)
            SECTIONS[name].measure(run, figures)
        except OutOfTimeError as late:
            figures["not_run"] = str(late)
        except Exception:  # the rest of a paid run is worth more than the first failure, which is reported
            figures["failed"] = traceback.format_exc()
            print(figures["failed"], flush=True)
        figures["section_s"] = perf_counter() - begun
        gc.collect()
        if run.scale.real:
            torch.cuda.empty_cache()
        run.save(f"section {name}", figures["section_s"])
    run.report["total_s"] = run.elapsed_s
    run.save("all", run.elapsed_s)
    return not any({"failed", "not_run"} & figures.keys() for figures in run.report["sections"].values())


def environment(device: torch.device) -> dict[str, Any]:
    """Also refuses, before any work, a machine that cannot write an MP4 or read it back."""
    import av
    import diffusers
    import transformers

    from vflash_adapters.media.ffmpeg_binary import find_ffmpeg

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
        "transformers": transformers.__version__,
        "av": av.__version__,
        "ffmpeg": find_ffmpeg().name,
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
    }


if __name__ == "__main__":
    sys.exit(main())
