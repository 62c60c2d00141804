"""A heavy thing with a lifetime: opened at first use, then kept or released."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """`use()` yields the opened thing; with `keep` it stays open until `close()`, else each use releases it.

    `open_seconds` sums what opening has cost so far.
    """

    def __init__(self, opener: Callable[[], AbstractContextManager[T]], *, keep: bool) -> None:
        self.keep = keep
        self.open_seconds = 0.0
        self._opener = opener
        self._scope: ExitStack | None = None
        self._value: T | None = None

    @contextmanager
    def use(self) -> Iterator[T]:
        value = self.open()
        try:
            yield value
        finally:
            if not self.keep:
                self.close()

    def open(self) -> T:
        if self._scope is None:
            start = time.perf_counter()
            with ExitStack() as scope:
                self._value = scope.enter_context(self._opener())
                self._scope = scope.pop_all()
            self.open_seconds += time.perf_counter() - start
        assert self._value is not None
        return self._value

    @property
    def is_open(self) -> bool:
        return self._scope is not None

    def close(self) -> None:
        """Release it; idempotent. What fails to close stays owned: a device may still be at work on it."""
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.close()
            self._value = None
