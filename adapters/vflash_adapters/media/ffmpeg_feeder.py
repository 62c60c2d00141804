"""Feeding FFmpeg from a thread of its own: the decoder queues its next clip while FFmpeg reads the one before."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event, Thread
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from vflash_adapters.media.ffmpeg_process import FfmpegProcess

PIECES_AHEAD = 4  # of eight frames: a clip of 17, and one piece of the clip before it


class FfmpegFeeder:
    """A context inside that of a fed `ffmpeg`; leaving it before `finish` returned kills the child.

    What goes wrong while feeding is raised by the next call.
    """

    def __init__(self, ffmpeg: FfmpegProcess) -> None:
        self._ffmpeg = ffmpeg
        self._free: SimpleQueue[NDArray[np.uint8]] = SimpleQueue()
        for _ in range(PIECES_AHEAD):
            self._free.put(np.empty(0, np.uint8))
        self._given: SimpleQueue[tuple[NDArray[np.uint8], int] | None] = SimpleQueue()
        self._failure: Exception | None = None
        self._ended = Event()  # a `join` that Ctrl-C interrupts leaves a running thread that is said to be dead
        self._thread = Thread(target=self._feed, name="vflash-ffmpeg-feeder", daemon=True)

    def __enter__(self) -> FfmpegFeeder:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended.is_set():
            self._ffmpeg.kill()  # a write that waits for it ends
            self._given.put(None)
        self._thread.join()

    def give(self, pixels: NDArray[np.uint8]) -> None:
        """Contiguous `pixels` are copied; waits while four pieces before them are unread."""
        held = self._free.get()
        if self._failure is not None:
            self._free.put(held)  # whoever gives more after a failure hears of it again
            raise self._failure
        if held.size < pixels.size:
            held = np.empty(pixels.size, np.uint8)
        held[: pixels.size] = pixels.reshape(-1)
        self._given.put((held, pixels.size))

    def finish(self) -> None:
        """Wait until everything given is read and FFmpeg is done, or raise `DeliveryError`."""
        self._given.put(None)
        self._ended.wait()
        if self._failure is not None:
            raise self._failure
        self._ffmpeg.finish()

    def _feed(self) -> None:
        while (piece := self._given.get()) is not None:
            held, count = piece
            if self._failure is None:
                try:
                    self._ffmpeg.feed(held[:count].data)
                except Exception as error:  # raised where the frames come from
                    self._failure = error
            self._free.put(held)
        self._ended.set()
