"""The profile's structure from plain spans: what is summed, what is listed, and what it must never hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vflash.domain.denoise_profile import (
    BLOCK_DETAILS,
    BLOCK_PHASES,
    ENGINE_PHASES,
    HOST_PHASES,
    PREPARE_PHASES,
    Span,
    chrome_trace,
    denoise_profile,
)


def span(name: str, start: float, seconds: float, *, evaluation: int = 0, block: int = -1, host: float = 0.0) -> Span:
    return Span(
        name=name,
        evaluation=evaluation,
        block=block,
        start_s=start,
        seconds=seconds,
        host_start_s=start,
        host_seconds=host,
    )


def profile(spans: list[Span]) -> dict[str, Any]:
    return denoise_profile(
        spans,
        device="cuda:0",
        instrumentation="cuda_events",
        block_bytes=1000,
        execution_seconds=9.0,
        materialization_seconds=0.5,
    )


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def test_overlapping_streams_are_listed_and_spanned_not_added() -> None:
    """Copies and blocks keep one number each in order of time; a span reaches from the first start to the last end."""
    found = profile(
        [
            span("ring_copy", 2.0, 1.0, block=1),
            span("ring_copy", 0.5, 1.0, block=0),
            span("ring_wait", 1.0, 0.5, block=0),
            span("block", 1.5, 2.0, block=0),
            span("block", 4.0, 2.5, block=1),
        ]
    )["block_ring"]
    (evaluation,) = found["evaluations"]
    assert evaluation["h2d_active_seconds"] == [1.0, 1.0]
    assert evaluation["h2d_span_seconds"] == 2.5
    assert evaluation["ready_wait_seconds"] == [0.5]
    assert evaluation["block_compute_seconds"] == [2.0, 2.5]
    assert evaluation["compute_span_seconds"] == 5.0
    assert evaluation["copied_bytes"] == 2000
    assert evaluation["profiled_blocks"] == 2
    assert found["totals"]["block_compute_seconds"] == 4.5


def test_every_documented_key_is_there_even_when_nothing_was_seen() -> None:
    """A reader finds every phase of every evaluation; what the resident stack has none of is zero or empty."""
    found = profile([span("evaluation", 0.0, 1.0, evaluation=number) for number in range(3)])
    assert [one["evaluation_index"] for one in found["evaluation_host"]] == [0, 1, 2]
    assert set(found["engine"]["preparation_seconds"]) == set(PREPARE_PHASES)
    for engine, ring in zip(found["engine"]["evaluations"], found["block_ring"]["evaluations"], strict=True):
        assert set(engine["primary_gpu_seconds"]) == {*ENGINE_PHASES, "primary_stream"}
        assert set(engine["host_seconds"]) == {*ENGINE_PHASES, "engine_step"}
        assert set(ring["block_phase_seconds"]) == set(BLOCK_PHASES)
        assert set(ring["block_detail_seconds"]) == set(BLOCK_DETAILS)
        assert ring["h2d_active_seconds"] == []
        assert ring["copied_bytes"] == 0
    assert found["added_nfe_fences"] is False


def test_details_are_named_after_the_phase_they_lie_in() -> None:
    """So that nobody adds them: each detail's first word is a phase."""
    assert {name.partition(".")[0] for name in BLOCK_DETAILS} <= set(BLOCK_PHASES)


def test_only_numbers_leave() -> None:
    """Leaves are numbers, booleans, the device's name, the clock's name and the fixed notes: no path, prompt, UUID."""
    found = profile([span(name, 0.0, 1.0, host=1.0) for name in (*ENGINE_PHASES, *HOST_PHASES, *BLOCK_PHASES)])
    words = {leaf for leaf in leaves(found) if isinstance(leaf, str)}
    assert words == {"cuda:0", "cuda_events", *found["not_additive"]}
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("name", "row", "start", "seconds"),
    [("ring_copy", 0, 1.0, 2.0), ("attention", 1, 1.0, 2.0), ("progress_fence", 2, 1.0, 0.25)],
)
def test_a_trace_has_a_row_each_for_copies_compute_and_host(name: str, row: int, start: float, seconds: float) -> None:
    """Complete events in microseconds; the host's phases are timed on the host."""
    trace = chrome_trace([span(name, 1.0, 2.0, evaluation=3, block=7, host=0.25)])
    rows = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert rows == {0: "copy stream", 1: "compute stream", 2: "host"}
    (event,) = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert (event["tid"], event["ts"], event["dur"]) == (row, start * 1e6, seconds * 1e6)
    assert event["args"] == {"evaluation": 3, "block": 7}
