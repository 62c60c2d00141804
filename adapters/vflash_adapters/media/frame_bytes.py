"""Float frames to RGB bytes where the frames are: on a device before they cross the bus, in strips on the host.

Everywhere the same bytes: x * 255 in float32, rounded half to even, clamped to 0..255.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

CHUNK_FRAMES = 8
STRIP_VALUES = 1 << 16  # 256 KiB of float32: every pass but the first finds them in the processor's own cache


@frozen(kw_only=True, eq=False)
class FrameBytes:
    """`pixels` uint8 CPU [f, H, W, 3], f <= 8, contiguous; `lowest` and `highest` before clamping, NaN if one is."""

    pixels: torch.Tensor
    lowest: float
    highest: float


def frame_bytes(clips: Iterator[torch.Tensor]) -> Iterator[FrameBytes]:
    """Float [f, 3, H, W], all on one device -> their bytes, eight frames at a time.

    Buffers are used again: bytes are valid until the next are asked for. On CUDA a clip is waited for only once the
    work of the next one is queued.
    """
    host, device = _Host(), _Device()
    waiting: _Queued | None = None
    for frames in clips:
        if frames.device.type == "cpu":
            yield from host.quantise(frames)
            del frames  # not held while the next ones are decoded; a device keeps them until they are read
            continue
        queued = device.queue(frames)
        del frames
        if waiting is not None:
            yield from waiting.parts()
        waiting = queued
    if waiting is not None:
        yield from waiting.parts()


class _Host:
    """One thread, on purpose: torch's would wait for one another at every pass, and cores are the encoder's now."""

    def __init__(self) -> None:
        self._pixels: NDArray[np.uint8] = np.empty((0, 0, 0, 3), np.uint8)

    def quantise(self, frames: torch.Tensor) -> Iterator[FrameBytes]:
        import torch

        for part in frames.detach().split(CHUNK_FRAMES):
            values = part.to(torch.float32).numpy()
            count, _, height, width = values.shape
            if self._pixels.shape[1:3] != (height, width) or len(self._pixels) < count:
                self._pixels = np.empty((count, height, width, 3), np.uint8)
            pixels = self._pixels[:count]
            lowest, highest = _quantise_strips(values, pixels)
            yield FrameBytes(pixels=torch.from_numpy(pixels), lowest=lowest, highest=highest)


def _quantise_strips(frames: NDArray[np.float32], pixels: NDArray[np.uint8]) -> tuple[float, float]:
    _, channels, height, width = frames.shape
    rows = max(1, STRIP_VALUES // width)
    scratch = np.empty((rows, width), np.float32)
    lowest, highest = np.float32(np.inf), np.float32(-np.inf)
    with np.errstate(invalid="ignore", over="ignore"):  # the bounds tell of NaN
        for frame, target in zip(frames, pixels, strict=True):
            for channel in range(channels):
                for top in range(0, height, rows):
                    strip = frame[channel, top : top + rows]
                    lowest, highest = np.minimum(lowest, strip.min()), np.maximum(highest, strip.max())
                    scaled = np.multiply(strip, np.float32(255), out=scratch[: len(strip)])
                    target[top : top + rows, :, channel] = np.clip(np.rint(scaled, out=scaled), 0, 255, out=scaled)
    return float(lowest), float(highest)


class _Device:
    """Two page-locked buffers in turns: one is read by the sink while the other one is written."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor | None] = [None, None]

    def queue(self, frames: torch.Tensor) -> _Queued:
        import torch

        count, channels, height, width = frames.shape
        pixels = torch.empty((count, height, width, channels), dtype=torch.uint8, device=frames.device)
        bounds = [torch.stack(part.aminmax()) for part in frames.detach().split(CHUNK_FRAMES)]
        for frame, target in zip(frames.detach(), pixels, strict=True):
            scaled = frame.to(torch.float32) * 255.0
            target.copy_(scaled.round_().clamp_(0, 255).permute(1, 2, 0))
        # On the decoder's own stream: a millisecond for 50 MB, and nothing to synchronise with.
        copies = self._buffer(pixels), torch.empty((len(bounds), 2), pin_memory=True)
        copies[0].copy_(pixels, non_blocking=True)
        copies[1].copy_(torch.stack(bounds).float(), non_blocking=True)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(frames.device))
        return _Queued(done=done, pixels=copies[0], bounds=copies[1])

    def _buffer(self, pixels: torch.Tensor) -> torch.Tensor:
        import torch

        self._buffers.reverse()
        held = self._buffers[0]
        if held is None or held.shape[1:] != pixels.shape[1:] or len(held) < len(pixels):
            held = self._buffers[0] = torch.empty(pixels.shape, dtype=torch.uint8, pin_memory=True)
        return held[: len(pixels)]


@frozen(kw_only=True, eq=False)
class _Queued:
    done: Any
    pixels: torch.Tensor
    bounds: torch.Tensor

    def parts(self) -> Iterator[FrameBytes]:
        self.done.synchronize()
        bounds: Sequence[Sequence[float]] = self.bounds.tolist()
        for pixels, (lowest, highest) in zip(self.pixels.split(CHUNK_FRAMES), bounds, strict=True):
            yield FrameBytes(pixels=pixels, lowest=lowest, highest=highest)
