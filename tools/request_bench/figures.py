"""What one request's own report says, flattened: seconds a stage, memory, what ran; and whether a profile adds up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vflash.pipeline import VideoResult

ENGINE_PARTS = ("input_pack", "denoiser", "final_layer", "latent_update")
MEMORY = ("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes", "rss_bytes")


def request_figures(result: VideoResult, wall_s: float) -> dict[str, Any]:
    """`wall_s` is the caller's own clock around the call; `other` is what the request took beside its stages."""
    stages, receipt = result.stages, result.receipt
    denoising = stages["denoising"]
    seconds = {
        "input_preparation": _seconds(stages["input_preparation"]),
        "text": _seconds(stages["encoding"]["text"]),
        "prepare": _seconds(denoising["prepare"]),
        "evaluations": _seconds(denoising["evaluations"]),
        "latent_export": _seconds(stages["latent_export"]),
        **_delivery_seconds(result),
    }
    planned, peak = receipt["planned"], receipt["memory"]["peak_allocated_bytes"]
    return {
        **_common(result, wall_s, seconds),
        "planned_device_bytes": planned["device_bytes_by_stage"],
        "planned_over_peak": None if peak is None else planned["device_bytes"] / peak,
        "peak_bytes_by_stage": {
            name: {key: stages[stage][key] for key in MEMORY if key in stages[stage]}
            for name, stage in (("encode", "encoding"), ("denoise", "denoising"), ("decode", "media"))
        },
        "backends": receipt["backends"],
        "attention": receipt["attention"],
    }


def decode_figures(result: VideoResult, wall_s: float) -> dict[str, Any]:
    """Of kept latents: sound, frames, MP4."""
    return _common(result, wall_s, _delivery_seconds(result))


def profile_figures(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Each ratio compares sums of the profile's own clock with what holds them; 1.0 is complete agreement.

    `stream_over_wall`: every evaluation on the device's stream over the stage's host seconds. The others: the parts of
    an evaluation over it, the blocks over the denoiser, the phases over the blocks.
    """
    generation = receipt["generation"]
    profile, wall = generation["denoise_profile"], generation["stage_durations"]["denoise"]
    evaluations = [one["primary_gpu_seconds"] for one in profile["engine"]["evaluations"]]
    stream, ring = _total(evaluations, "primary_stream"), profile["block_ring"]
    blocks, phases = ring["totals"]["block_compute_seconds"], ring["phase_totals"]
    return {
        "instrumentation": profile["instrumentation"],
        "wall_s": wall,
        "stream_s": stream,
        "stream_over_wall": stream / wall,
        "parts_over_stream": sum(_total(evaluations, part) for part in ENGINE_PARTS) / stream,
        "blocks_over_denoiser": blocks / _total(evaluations, "denoiser"),
        "phases_over_blocks": sum(phases.values()) / blocks,
        "phase_seconds": phases,
        "ring": {key: value for key, value in ring["totals"].items() if key != "profiled_blocks"},
        "materialization_s": profile["materialization_seconds"],
    }


def _common(result: VideoResult, wall_s: float, seconds: Mapping[str, float]) -> dict[str, Any]:
    delivery, loading = result.receipt["delivery"], result.stages["initialization_seconds"]
    return {
        "wall_s": wall_s,
        "request_s": result.elapsed_seconds,
        "loading_s": loading,
        "seconds": {**seconds, "other": result.elapsed_seconds - loading - sum(seconds.values())},
        "memory": result.receipt["memory"],
        "mp4": {key: delivery[key] for key in ("sink", "frames", "width", "height", "size_bytes")}
        | {key: delivery["details"][key] for key in ("encoder", "preset", "crf", "video_threads", "ffmpeg_seconds")},
    }


def _delivery_seconds(result: VideoResult) -> dict[str, float]:
    """`frames` is the video decode with everything that runs beside it, until the last frame was handed over: making
    bytes, and the RGB file or the feeding of FFmpeg. `mp4` is what FFmpeg takes from then on, and reading it back."""
    media = result.stages["media"]
    after = float(result.receipt["delivery"]["details"]["seconds_after_last_frame"])
    return {
        "audio_decode": _seconds(media["audio_decode"]),
        "frames": _seconds(media["video_decode_and_encode"]) - after,
        "mp4": after,
    }


def _seconds(stage: Mapping[str, Any]) -> float:
    return float(stage["elapsed_seconds"])


def _total(evaluations: Iterable[Mapping[str, float]], part: str) -> float:
    return sum(one[part] for one in evaluations)
