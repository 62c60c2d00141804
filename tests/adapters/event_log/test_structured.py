"""The structured log: one line an event, for programs or for people."""

from __future__ import annotations

import io
import json

from vflash_adapters.event_log.structured import StructuredLog


def test_json_lines_hold_event_time_and_fields():
    """Every event is one JSON object on its own line."""
    stream = io.StringIO()
    log = StructuredLog(as_json=True, stream=stream)
    log.record("request started", {"request_index": 1})
    log.record("stage finished", {"stage": "denoising", "seconds": 1.5})
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["request_index"]) == ("request started", 1)
    assert second["seconds"] == 1.5
    assert first["time"].endswith("Z")


def test_console_lines_are_plain_text_off_a_terminal():
    """No colour codes in a file."""
    stream = io.StringIO()
    StructuredLog(as_json=False, stream=stream).record("pipeline closed", {"requests": 2})
    assert "pipeline closed" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
