"""Events through structlog: one JSON object a line, or coloured text for a person; never through global state."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

import structlog

from vflash_ports.event_log import FieldValue


class StructuredLog:
    """Writes to `stream` (stderr by default) with a UTC time stamp."""

    def __init__(self, *, as_json: bool, stream: TextIO | None = None) -> None:
        target = stream or sys.stderr
        render = (
            structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=target.isatty())
        )
        self._logger = structlog.wrap_logger(
            structlog.PrintLogger(target),
            processors=[structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"), render],
        )

    def record(self, event: str, fields: Mapping[str, FieldValue]) -> None:
        self._logger.msg(event, **fields)
