"""The operator's log: what happened and when, in plain fields. Prompts, paths and tensors never enter it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

FieldValue = str | int | float | None


class EventLog(Protocol):
    def record(self, event: str, fields: Mapping[str, FieldValue]) -> None:
        """One event, such as "request started", with what identifies and measures it."""
        ...


class SilentLog:
    """Keeps no log."""

    def record(self, event: str, fields: Mapping[str, FieldValue]) -> None:
        return None
