"""The receipt: what ran, in plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict

from vflash.domain.duration import ClipLength
from vflash.domain.model_facts import ModelFacts
from vflash.domain.plan import Plan
from vflash.domain.request import VideoRequest
from vflash_ports.media import Delivery

SCHEMA_VERSION = 1


def request_receipt(request: VideoRequest, plan: Plan, facts: ModelFacts) -> dict[str, Any]:
    """What was asked and what it means in frames, rows and noise levels; the prompt is not repeated."""
    return {
        "mode": str(plan.mode),
        "seed": plan.seed,
        "canvas": {"width": plan.canvas.width, "height": plan.canvas.height},
        "duration_s": request.duration_s,
        "frames": {"modelled": plan.length.model_frames, "delivered": plan.length.delivered_frames},
        "latents": {
            "frames": plan.length.latent_frames,
            "height": plan.latent_height,
            "width": plan.latent_width,
            "audio": plan.length.audio_latents,
        },
        "schedule": asdict(plan.schedule),
        "inputs": {
            "first_frame": request.first_frame is not None,
            "last_frame": request.last_frame is not None,
            "references": [str(item.kind) for item in request.references],
        },
        "denoiser": {"component": plan.denoiser, "blocks": facts.denoiser.num_layers},
    }


def generation_receipt(plan: Plan, stages: Mapping[str, Any], profile: Mapping[str, Any] | None) -> dict[str, Any]:
    """The denoising alone, from conditioning to saved latents; `denoise_profile` is null unless it was asked for."""
    denoising = stages["denoising"]
    export = stages["latent_export"]["elapsed_seconds"]
    return {
        "nfe": plan.schedule.evaluations,
        "execution_schedule": asdict(plan.schedule),
        "elapsed_seconds": denoising["elapsed_seconds"] - denoising["load"]["elapsed_seconds"] + export,
        "stage_durations": {
            "request_prepare": denoising["prepare"]["elapsed_seconds"],
            "denoise": denoising["evaluations"]["elapsed_seconds"],
            "latent_export": export,
        },
        **{name: value for name, value in denoising.items() if name.endswith("_bytes")},
        "denoise_profile": profile,
    }


def decode_receipt(metadata: Mapping[str, str], length: ClipLength, backends: Mapping[str, Any]) -> dict[str, Any]:
    """For kept latents: what their own metadata says, and what decoded them."""
    return {
        "backends": dict(backends),
        "latents_metadata": dict(metadata),
        "frames": {"modelled": length.model_frames, "delivered": length.delivered_frames},
    }


def delivery_receipt(delivery: Delivery, sink: str) -> dict[str, Any]:
    values = asdict(delivery)
    return {"delivery": {"sink": sink, **values, "path": delivery.path.name}}


def receipt(*, version: str, run: Mapping[str, Any]) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "vflash": version, **run}
