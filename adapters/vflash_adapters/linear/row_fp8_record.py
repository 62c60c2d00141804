"""What one FP8 execution object counts and, on demand, times; nothing here fences the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch
from attrs import define, field

from vflash_ports.errors import ContractError


@define(kw_only=True)
class RowFP8Counters:
    """Calls and rows since the execution object was made."""

    weight_only_calls: int = 0
    w8a8_calls: int = 0
    rows: int = 0
    rows_quantised: int = 0  # rows that arrived dense and were quantised here


@define(eq=False)
class ScopeTimer:
    """Named spans on the current stream, from events that are read only after the caller's own synchronisation."""

    enabled: bool
    _events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = field(factory=list, init=False)
    _seconds: dict[str, float] = field(factory=dict, init=False)

    @contextmanager
    def scope(self, name: str, device: torch.device) -> Iterator[None]:
        """Time what is launched inside, on `device`; free when the timer is off."""
        if not self.enabled:
            yield
        elif device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(torch.cuda.current_stream(device))
            yield
            end.record(torch.cuda.current_stream(device))
            self._events.append((name, start, end))
        else:
            started = perf_counter()
            yield
            self._add(name, perf_counter() - started)

    def seconds(self) -> dict[str, float]:
        """Total seconds by scope. `ContractError` when timing is off or the device has not finished yet."""
        if not self.enabled:
            raise ContractError("this execution was made without timing: pass measure=True")
        if not all(end.query() for _, _, end in self._events):
            raise ContractError("the device has not finished the timed work: synchronise before reading the seconds")
        for name, start, end in self._events:
            self._add(name, start.elapsed_time(end) / 1000)
        self._events.clear()
        return dict(self._seconds)

    def _add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
