"""The jobs of the stages that a plan and a time budget say everything about."""

from __future__ import annotations

from typing import Any

from tiny_h3.audio_vae import AudioVaeJob
from tiny_h3.plan import RunPlan
from tiny_h3.stage import Budget
from tiny_h3.turbo import TurboJob
from tiny_h3.veda import VedaJob
from tiny_h3.video_vae import VideoVaeJob

TURBO_BATCH = 64


def video_vae_job(plan: RunPlan, budget: Budget) -> VideoVaeJob:
    small: dict[str, Any] = {"batch": 1, "canvases": ((32, 32),), "statistics_clips": 1} if plan.toy else {}
    return VideoVaeJob(sizes=plan.sizes, folder=plan.folder, budget=budget, **small)


def audio_vae_job(plan: RunPlan, budget: Budget) -> AudioVaeJob:
    small = {"batch": 1, "latents": 12} if plan.toy else {}
    return AudioVaeJob(sizes=plan.sizes, folder=plan.folder, budget=budget, **small)


def turbo_job(plan: RunPlan, budget: Budget) -> TurboJob:
    return TurboJob(
        sizes=plan.sizes,
        denoiser=plan.path("transformer.safetensors"),
        adapter=plan.path("turbo.safetensors"),
        log=plan.log,
        budget=budget,
        batch=min(plan.batch, TURBO_BATCH),
        compiled=False,  # teacher and student would be compiled once more each
    )


def veda_job(plan: RunPlan, budget: Budget) -> VedaJob:
    return VedaJob(
        sizes=plan.sizes,
        denoiser=plan.path("transformer.safetensors"),
        predictor=plan.path("veda.safetensors"),
        log=plan.log,
        budget=budget,
        batch=max(1, min(plan.batch, TURBO_BATCH) // 8),
    )
