"""What frames say about themselves, one at a time: black, frozen, and jumps of the mean at clip boundaries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLACK_MEAN = 4.0  # of 255, over the whole frame
BLACK_PEAK = 32  # of 255, on every eighth pixel: one lit window is no black frame
FROZEN_DIFFERENCE = 0.05  # mean absolute difference to the frame before, of 255
SAMPLE_STEP = 8


class FrameStatistics:
    """Holds one frame and a few numbers for each; frames are uint8 RGB [H, W, 3] in order."""

    def __init__(self, clip_frames: int) -> None:
        self._clip_frames = clip_frames
        self._before: NDArray[np.uint8] | None = None
        self.means: list[float] = []
        self.black: list[int] = []
        self.frozen: list[int] = []

    def add(self, frame: NDArray[np.uint8]) -> None:
        index = len(self.means)
        self.means.append(float(frame.mean()))
        if self.means[-1] < BLACK_MEAN and int(frame[::SAMPLE_STEP, ::SAMPLE_STEP].max()) < BLACK_PEAK:
            self.black.append(index)
        if self._before is not None and _difference(frame, self._before) < FROZEN_DIFFERENCE:
            self.frozen.append(index)
        self._before = frame

    def report(self) -> dict[str, Any]:
        """Frames are counted from 0; ranges are inclusive; means and jumps are of 255."""
        jumps = np.abs(np.diff(np.asarray(self.means)))
        at_boundary = np.zeros(len(jumps), dtype=bool)
        at_boundary[self._clip_frames - 1 :: self._clip_frames] = True
        elsewhere = jumps[~at_boundary]
        return {
            "black_frames": ranges(self.black),
            "frozen_frames": ranges(self.frozen),
            "mean_levels": [round(mean, 3) for mean in self.means],
            "clip_frames": self._clip_frames,
            "boundary_jumps": [
                {"frame": int(index) + 1, "jump": round(float(jumps[index]), 3)}
                for index in np.flatnonzero(at_boundary)
            ],
            "median_jump_elsewhere": round(float(np.median(elsewhere)), 3) if elsewhere.size else None,
        }


def _difference(frame: NDArray[np.uint8], before: NDArray[np.uint8]) -> float:
    if frame.shape != before.shape:
        return 255.0
    # max - min of two bytes never leaves the byte, and is their distance
    return float((np.maximum(frame, before) - np.minimum(frame, before)).mean())


def ranges(indices: list[int]) -> list[list[int]]:
    """[0, 1, 2, 7] -> [[0, 2], [7, 7]]."""
    found: list[list[int]] = []
    for index in indices:
        if found and index == found[-1][1] + 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return found
