"""Observer: progress, timing and profile of the one forward there is. The default does nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Observer(Protocol):
    def progress(self, stage: str, completed: int, total: int) -> None:
        """After each unit of work. A callback that raises cancels the request."""
        ...

    def stage(self, name: str) -> AbstractContextManager[None]:
        """An outer stage: encode, denoise, decode, deliver."""
        ...

    def phase(self, name: str, *, evaluation: int = -1, block: int = -1) -> AbstractContextManager[None]:
        """A named piece of one evaluation or one block, on the compute stream; adds no fence."""
        ...


class _Nothing(AbstractContextManager[None]):
    def __exit__(self, *exc: object) -> None:
        return None


class SilentObserver:
    """Observes nothing, at the cost of a method call."""

    _nothing = _Nothing()

    def progress(self, stage: str, completed: int, total: int) -> None:
        return None

    def stage(self, name: str) -> AbstractContextManager[None]:
        return self._nothing

    def phase(self, name: str, *, evaluation: int = -1, block: int = -1) -> AbstractContextManager[None]:
        return self._nothing
