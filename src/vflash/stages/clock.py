"""How long one request took, and how much of that was loading models."""

from __future__ import annotations

import time

from attrs import define, field

from vflash.stages.models import Models


@define(kw_only=True, eq=False)
class RequestClock:
    """Begins where it is made. Seconds."""

    number: int
    models: Models
    _start: float = field(factory=time.perf_counter, init=False)
    _opened_before: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._opened_before = self.models.open_seconds

    @property
    def elapsed_seconds(self) -> float:
        return time.perf_counter() - self._start

    @property
    def loading_seconds(self) -> float:
        """Model loading within this request."""
        return self.models.open_seconds - self._opened_before
