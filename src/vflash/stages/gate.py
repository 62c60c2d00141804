"""One request at a time, and an honest state: healthy, busy, closed, failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock

import torch
from attrs import define, field

from vflash.stages.current_device import current_device, numbered
from vflash.stages.watch import RequestWatch
from vflash_ports.errors import BusyError, ClosedError, ContractError
from vflash_ports.event_log import EventLog, FieldValue, SilentLog


@define(kw_only=True, eq=False)
class Gate:
    """Input errors and cancelling leave it healthy; a failed execution retires it. What it lets in runs with `device`
    as the thread's current one; `cuda` is the card that is current when the first is let in, whichever thread the next
    ones come from."""

    device: torch.device = field(factory=lambda: torch.device("cpu"))
    requests: int = 0
    closed: bool = False
    failure: str | None = None
    log: EventLog = field(factory=SilentLog)
    _lock: Lock = field(factory=Lock)
    _numbered: torch.device | None = None

    def on_device(self) -> AbstractContextManager[object]:
        """For what is asked beside requests, a plan: on the same device."""
        self._numbered = self._numbered or numbered(self.device)
        return current_device(self._numbered)

    @contextmanager
    def admit(self) -> Iterator[int]:
        """Yields the request's number, from 1."""
        with self._alone("a request is running; one pipeline runs one request at a time"):
            self._check_alive()
            self.requests += 1
            with self._recorded(self.requests):
                yield self.requests

    @contextmanager
    def maintain(self) -> Iterator[None]:
        """For `prepare`: alone, but not a request."""
        with self._alone("a request is running; prepare the pipeline before or after it"):
            self._check_alive()
            yield

    @contextmanager
    def shut(self) -> Iterator[None]:
        with self._alone("a request is running; to cancel it raise from its progress callback, then close"):
            self.closed = True
            yield
            self.log.record("pipeline closed", {"requests": self.requests})

    @contextmanager
    def executing(self, watch: RequestWatch, release: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Whatever fails in here other than by the caller's own doing retires the pipeline, and `release` is called."""
        try:
            yield
        except ContractError:
            raise
        except BaseException as error:
            if not watch.cancelled:
                self.failure = f"{type(error).__name__}: {error}"
                release()
            raise

    @contextmanager
    def _recorded(self, number: int) -> Iterator[None]:
        start = time.perf_counter()
        self.log.record("request started", {"request_index": number})
        try:
            yield
        except BaseException as error:
            ended: dict[str, FieldValue] = {
                "request_index": number,
                "error": type(error).__name__,
                "seconds": time.perf_counter() - start,
                "retired": int(self.failure is not None),
            }
            self.log.record("request ended early", ended)
            raise
        self.log.record("request finished", {"request_index": number, "seconds": time.perf_counter() - start})

    @contextmanager
    def _alone(self, why: str) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise BusyError(why)
        try:
            with self.on_device():
                yield
        finally:
            self._lock.release()

    def _check_alive(self) -> None:
        if self.closed:
            raise ClosedError("this pipeline is closed; build a new one")
        if self.failure is not None:
            raise ClosedError(f"this pipeline was retired by a failed request ({self.failure}); build a new one")
