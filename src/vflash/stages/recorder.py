"""Records phases while they run: events on a CUDA device, the clock on a CPU; nothing is waited for until the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from attrs import frozen

from vflash.domain.denoise_profile import Span, chrome_trace, denoise_profile


@frozen(eq=False)
class _Mark:
    """A moment: on the host, and on the device (an event or the same clock)."""

    host_s: float
    device: Any


class _Clock(Protocol):
    name: str

    def mark(self) -> _Mark: ...

    def seconds(self, before: _Mark, after: _Mark) -> float: ...


class _HostClock:
    name = "perf_counter"

    def mark(self) -> _Mark:
        return _Mark(time.perf_counter(), None)

    def seconds(self, before: _Mark, after: _Mark) -> float:
        return after.host_s - before.host_s


class _EventClock:
    """An event on whichever stream is current, so that copies are timed on theirs."""

    name = "cuda_events"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> _Mark:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return _Mark(time.perf_counter(), event)

    def seconds(self, before: _Mark, after: _Mark) -> float:
        return float(before.device.elapsed_time(after.device)) / 1000


@frozen(eq=False)
class _Phase:
    name: str
    evaluation: int
    block: int
    begin: _Mark
    end: _Mark


class PhaseRecorder:
    """The phases of one request; `finish` reads the events after the last of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._clock: _Clock = _EventClock(device) if device.type == "cuda" else _HostClock()
        self._phases: list[_Phase] = []
        self._zero = self._clock.mark()

    def phase(self, name: str, *, evaluation: int = -1, block: int = -1) -> AbstractContextManager[None]:
        return self._timed(name, evaluation, block)

    def finish(self, block_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The profile and the trace. Called after the last fence of the denoising."""
        start = time.perf_counter()
        spans = self.spans()
        execution = max((span.host_start_s + span.host_seconds for span in spans), default=0.0)
        execution -= min((span.host_start_s for span in spans), default=0.0)
        profile = denoise_profile(
            spans,
            device=str(self._device),
            instrumentation=self._clock.name,
            block_bytes=block_bytes,
            execution_seconds=execution,
            materialization_seconds=time.perf_counter() - start,
        )
        return profile, chrome_trace(spans)

    def spans(self) -> list[Span]:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # the copies queued ahead for a next pass are the only ones left
        return [self._span(phase) for phase in self._phases]

    @contextmanager
    def _timed(self, name: str, evaluation: int, block: int) -> Iterator[None]:
        begin = self._clock.mark()
        try:
            yield
        finally:
            self._phases.append(_Phase(name, evaluation, block, begin, self._clock.mark()))

    def _span(self, phase: _Phase) -> Span:
        return Span(
            name=phase.name,
            evaluation=phase.evaluation,
            block=phase.block,
            start_s=self._clock.seconds(self._zero, phase.begin),
            seconds=self._clock.seconds(phase.begin, phase.end),
            host_start_s=phase.begin.host_s - self._zero.host_s,
            host_seconds=phase.end.host_s - phase.begin.host_s,
        )
