"""How copies into a slot and the compute that reads it keep out of each other's way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch


class Lane(Protocol):
    """The order of one slot: copying waits for `mark_done`, `wait_ready` waits for the copying."""

    def copying(self) -> AbstractContextManager[None]:
        """Copies queued inside run when the compute marked done has passed."""
        ...

    def wait_ready(self) -> None:
        """Compute queued from here on runs when the last copies have landed."""
        ...

    def mark_done(self) -> None:
        """Compute queued so far is what the next copies wait for."""
        ...


LaneMaker = Callable[[torch.device], Callable[[], Lane]]


def lane_maker(device: torch.device) -> Callable[[], Lane]:
    """Lanes that share one copy stream, so that blocks arrive in the order they are needed."""
    if device.type != "cuda":
        return HostLane
    copy_stream = torch.cuda.Stream(device)
    return lambda: CudaLane(device, copy_stream)


class HostLane:
    """On a CPU everything happens when it is called."""

    def copying(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wait_ready(self) -> None:
        return None

    def mark_done(self) -> None:
        return None


class CudaLane:
    """Two events between the caller's current stream and the device's one copy stream; nothing waits on the host."""

    def __init__(self, device: torch.device, copy_stream: torch.cuda.Stream) -> None:
        self._device = device
        self._copy_stream = copy_stream
        self._ready = torch.cuda.Event()
        self._done = torch.cuda.Event()

    @contextmanager
    def copying(self) -> Iterator[None]:
        with torch.cuda.stream(self._copy_stream):
            self._copy_stream.wait_event(self._done)
            yield
            self._ready.record(self._copy_stream)

    def wait_ready(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._ready)

    def mark_done(self) -> None:
        self._done.record(torch.cuda.current_stream(self._device))
