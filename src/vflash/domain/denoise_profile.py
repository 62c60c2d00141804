"""The profile of one denoising: plain spans in, the documented structure and a trace out.

Copies, waits and compute overlap on different streams, and details lie inside their phase: none of them adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import frozen

SCHEMA_VERSION = 1
BLOCK_PHASES = (
    "adaln",
    "attention_norm_modulate",
    "qkv_projection",
    "qk_norm_rotary",
    "attention",
    "attention_output",
    "ffn_norm_modulate",
    "ffn_input",
    "ffn_output",
)
BLOCK_DETAILS = (
    "attention_output.projection",
    "attention_output.gate_residual",
    "ffn_input.projection",
    "ffn_input.silu_gate",
    "ffn_output.projection",
    "ffn_output.gate_residual",
)
ENGINE_PHASES = ("input_pack", "denoiser", "final_layer", "latent_update")
PREPARE_PHASES = ("row_setup", "adaln", "invocation_prepare")
HOST_PHASES = ("engine_step", "progress_fence", "progress_callback", "final_fence")
"""Waits and submissions of the host: their device time means nothing."""


@frozen(kw_only=True)
class Span:
    """One phase. `start_s` and `seconds` on the device's clock, `host_*` on the host's, both from one common zero."""

    name: str
    evaluation: int
    block: int
    start_s: float
    seconds: float
    host_start_s: float
    host_seconds: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.seconds


def denoise_profile(
    spans: Sequence[Span],
    *,
    device: str,
    instrumentation: str,
    block_bytes: int,
    execution_seconds: float,
    materialization_seconds: float,
) -> dict[str, Any]:
    """`generation.denoise_profile`: numbers and the device's name alone. `block_bytes` is what a ring copy moves."""
    evaluations = sorted({span.evaluation for span in spans if span.evaluation >= 0})
    by_evaluation = [[span for span in spans if span.evaluation == number] for number in evaluations]
    ring = [_ring(number, found, block_bytes) for number, found in zip(evaluations, by_evaluation, strict=True)]
    return {
        "schema_version": SCHEMA_VERSION,
        "instrumentation": instrumentation,
        "added_nfe_fences": False,
        "execution_seconds_to_final_fence": execution_seconds,
        "materialization_seconds": materialization_seconds,
        "evaluation_host": [
            _evaluation_host(number, found, device) for number, found in zip(evaluations, by_evaluation, strict=True)
        ],
        "final_fence_seconds_by_device": {device: _host(spans, "final_fence")},
        "engine": {
            "preparation_seconds": {name: _device(spans, name) for name in PREPARE_PHASES},
            "evaluations": [_engine(number, found) for number, found in zip(evaluations, by_evaluation, strict=True)],
        },
        "block_ring": {
            "device": device,
            "evaluations": ring,
            "phase_totals": {name: sum(one["block_phase_seconds"][name] for one in ring) for name in BLOCK_PHASES},
            "totals": _totals(ring),
        },
        "not_additive": [
            "h2d_active_seconds, ready_wait_seconds, block_compute_seconds and the spans overlap",
            "block_detail_seconds lie inside block_phase_seconds, block_phase_seconds inside block_compute_seconds",
        ],
    }


def chrome_trace(spans: Iterable[Span]) -> dict[str, Any]:
    """The same spans for chrome://tracing and Perfetto: one row each for copies, compute and the host."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": tid, "name": "thread_name", "args": {"name": name}}
        for tid, name in enumerate(("copy stream", "compute stream", "host"))
    ]
    for span in spans:
        on_host = span.name in HOST_PHASES
        start, seconds = (span.host_start_s, span.host_seconds) if on_host else (span.start_s, span.seconds)
        events.append(
            {
                "ph": "X",
                "pid": 0,
                "tid": 2 if on_host else int(span.name != "ring_copy"),
                "name": span.name,
                "ts": start * 1e6,
                "dur": seconds * 1e6,
                "args": {"evaluation": span.evaluation, "block": span.block},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _evaluation_host(number: int, spans: Sequence[Span], device: str) -> dict[str, Any]:
    return {
        "evaluation_index": number,
        "engine_step_seconds": _host(spans, "engine_step"),
        "progress_fence_seconds_by_device": {device: _host(spans, "progress_fence")},
        "progress_callback_seconds": _host(spans, "progress_callback"),
    }


def _engine(number: int, spans: Sequence[Span]) -> dict[str, Any]:
    return {
        "evaluation_index": number,
        "primary_gpu_seconds": {
            **{name: _device(spans, name) for name in ENGINE_PHASES},
            "primary_stream": _device(spans, "evaluation"),
        },
        "host_seconds": {
            **{name: _host(spans, name) for name in ENGINE_PHASES},
            "engine_step": _host(spans, "engine_step"),
        },
    }


def _ring(number: int, spans: Sequence[Span], block_bytes: int) -> dict[str, Any]:
    copies, blocks = _named(spans, "ring_copy"), _named(spans, "block")
    return {
        "evaluation_index": number,
        "copied_bytes": len(copies) * block_bytes,
        "h2d_active_seconds": [span.seconds for span in copies],
        "h2d_span_seconds": _extent(copies),
        "ready_wait_seconds": [span.seconds for span in _named(spans, "ring_wait")],
        "block_compute_seconds": [span.seconds for span in blocks],
        "compute_span_seconds": _extent(blocks),
        "profiled_blocks": len(blocks),
        "block_phase_seconds": {name: _device(spans, name) for name in BLOCK_PHASES},
        "block_detail_seconds": {name: _device(spans, name) for name in BLOCK_DETAILS},
    }


def _totals(ring: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def total(of: Callable[[dict[str, Any]], Any]) -> Any:
        return sum(of(one) for one in ring)

    return {
        "copied_bytes": total(lambda one: one["copied_bytes"]),
        "h2d_active_seconds": total(lambda one: sum(one["h2d_active_seconds"])),
        "ready_wait_seconds": total(lambda one: sum(one["ready_wait_seconds"])),
        "block_compute_seconds": total(lambda one: sum(one["block_compute_seconds"])),
        "profiled_blocks": total(lambda one: one["profiled_blocks"]),
    }


def _named(spans: Iterable[Span], name: str) -> list[Span]:
    return sorted((span for span in spans if span.name == name), key=lambda span: span.start_s)


def _device(spans: Iterable[Span], name: str) -> float:
    return sum((span.seconds for span in spans if span.name == name), 0.0)


def _host(spans: Iterable[Span], name: str) -> float:
    return sum((span.host_seconds for span in spans if span.name == name), 0.0)


def _extent(spans: Sequence[Span]) -> float:
    return max((span.end_s for span in spans), default=0.0) - min((span.start_s for span in spans), default=0.0)
