"""The run's other processes: the audio VAE beside the video VAE, and a follower of the joint training."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tiny_h3.companion import forget
from tiny_h3.plan import Clock, RunPlan
from tiny_h3.stage import Log

LAST_EXCHANGE_S = 30.0


def start_audio(plan: RunPlan, clock: Clock) -> subprocess.Popen[bytes]:
    """On a second GPU nothing waits for it, and one GPU is not filled by the video VAE alone. Denoisers do not need
    it: a scene's audio latents are its code."""
    two = torch.cuda.device_count() > 1
    seconds = clock.seconds("audio on its own" if two else "vae")
    return subprocess.Popen(command("audio-vae", plan, seconds=seconds), env=_second_gpu() if two else None)


@contextmanager
def following(plan: RunPlan) -> Iterator[subprocess.Popen[bytes] | None]:
    """A second GPU, if there is one, joins in. It has the same time for its clips, and compiles for itself.

    A leader that fails inside takes it along, wherever it is."""
    forget(plan.folder)
    plan.path("follower.safetensors").unlink(missing_ok=True)
    if torch.cuda.device_count() < 2:
        yield None
        return
    process = subprocess.Popen(command("follow", plan, seconds=plan.seconds), env=_second_gpu())
    try:
        yield process
    finally:
        process.kill()  # nothing to one that has ended
        process.wait()


def end_follower(process: subprocess.Popen[bytes], log: Log) -> None:
    """It hears at its next exchange that the leader has ended."""
    try:
        process.wait(timeout=LAST_EXCHANGE_S)
    except subprocess.TimeoutExpired:
        process.kill()
    log.write(exit_status=process.wait())


def command(stage: str, plan: RunPlan, *, seconds: float) -> list[str]:
    """`stage` of the same plan, with `seconds` of its own."""
    values = {"folder": plan.folder, "seconds": seconds, "clips": plan.clips, "batch": plan.batch}
    values |= {"prompts": plan.prompts} | ({} if plan.steps is None else {"steps": plan.steps})
    flags = [flag for flag, given in (("--toy", plan.toy), ("--no-compile", not plan.compiled)) if given]
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    canvases = [word for height, width in plan.canvases for word in ("--canvas", f"{width}x{height}")]
    return [sys.executable, "-m", "tiny_h3", stage, *words, *canvases, *flags]


def _second_gpu() -> dict[str, str]:
    """Of those that this process sees."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {**os.environ, "CUDA_VISIBLE_DEVICES": seen.split(",")[1] if seen else "1"}
