"""The observer of a real request: nested stage seconds, and the caller's progress callback."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from vflash.domain.progress import PipelineProgress, ProgressCallback
from vflash.stages.memory import PeakMeter
from vflash_ports.event_log import EventLog, SilentLog
from vflash_ports.observer import SilentObserver

if TYPE_CHECKING:
    import torch

OUTERMOST = 2  # the request's own record, and one stage


class Phases(Protocol):
    """The part of an `Observer` that sees the pieces of the denoising."""

    def phase(self, name: str, *, evaluation: int = -1, block: int = -1) -> AbstractContextManager[None]: ...


class RequestWatch:
    """`stages` nests: an outer stage's `elapsed_seconds` holds those of the stages inside it; never add both.

    An outermost stage also records its own memory peaks where `device` is given, and its end goes into `log`. `phases`
    sees the pieces of the denoising. `cancellation` is what the caller's callback raised, whatever has been made of it
    on its way up.
    """

    def __init__(
        self,
        callback: ProgressCallback | None = None,
        *,
        device: torch.device | None = None,
        phases: Phases | None = None,
        log: EventLog | None = None,
    ) -> None:
        self.stages: dict[str, Any] = {}
        self.cancellation: BaseException | None = None
        self._open = [self.stages]
        self._callback = callback
        self._phases: Phases = phases or SilentObserver()
        self._meter = PeakMeter(device)
        self._log = log or SilentLog()

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
        outermost = len(self._open) == OUTERMOST
        if outermost:
            self._meter.begin()
        start = time.perf_counter()
        try:
            yield
        finally:
            record["elapsed_seconds"] += time.perf_counter() - start
            self._open.pop()
            if outermost:
                record.update(self._meter.end())
                self._log.record("stage ended", {"stage": name, "seconds": record["elapsed_seconds"]})

    def peaks(self) -> dict[str, int | None]:
        """The highest of every stage so far, bytes."""
        return self._meter.highest()

    def phase(self, name: str, *, evaluation: int = -1, block: int = -1) -> AbstractContextManager[None]:
        return self._phases.phase(name, evaluation=evaluation, block=block)
