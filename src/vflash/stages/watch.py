"""The observer of a real request: nested stage seconds, and the caller's progress callback."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from vflash.domain.progress import PipelineProgress, ProgressCallback
from vflash_ports.observer import SilentObserver


class RequestWatch:
    """`stages` nests: an outer stage's `elapsed_seconds` holds those of the stages inside it; never add both.

    `cancellation` is what the caller's callback raised, whatever has been made of it on its way up.
    """

    def __init__(self, callback: ProgressCallback | None = None) -> None:
        self.stages: dict[str, Any] = {}
        self.cancellation: BaseException | None = None
        self._open = [self.stages]
        self._callback = callback
        self._phases = SilentObserver()

    @property
    def cancelled(self) -> bool:
        return self.cancellation is not None

    def progress(self, stage: str, completed: int, total: int) -> None:
        if self._callback is None:
            return
        try:
            self._callback(PipelineProgress(stage=stage, completed=completed, total=total))
        except BaseException as error:
            self.cancellation = error
            raise

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        record: dict[str, Any] = self._open[-1].setdefault(name, {"elapsed_seconds": 0.0})
        self._open.append(record)
        start = time.perf_counter()
        try:
            yield
        finally:
            record["elapsed_seconds"] += time.perf_counter() - start
            self._open.pop()

    def phase(self, name: str, *, evaluation: int = -1, block: int = -1) -> AbstractContextManager[None]:
        return self._phases.phase(name, evaluation=evaluation, block=block)
