"""Quantisation: float frames become RGB bytes, a float waveform becomes PCM16. The same for every sink."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from vflash_adapters.media.frame_bytes import FrameBytes, frame_bytes
from vflash_ports.errors import DeliveryError, MediaError, NonFiniteError
from vflash_ports.media import Clip

if TYPE_CHECKING:
    import torch

MAX_FPS = 60
# Slight overshoot is clamped; values this far out were never in the stated range (0..255 pixels, PCM integers).
PIXEL_LIMITS = (-1.0, 2.0)
WAVEFORM_LIMIT = 4.0


def check_clip(clip: Clip) -> None:
    """Refuse what no sink could deliver exactly: odd sizes, no frames, a waveform of another length than the frames."""
    if clip.width <= 0 or clip.height <= 0 or clip.width % 2 or clip.height % 2:
        raise MediaError(f"a clip of {clip.width}x{clip.height} cannot be written: H.264 4:2:0 needs even sizes")
    if clip.frame_count < 1 or not 1 <= clip.fps <= MAX_FPS or clip.sample_rate_hz < 1:
        raise MediaError(
            f"a clip of {clip.frame_count} frames at {clip.fps} fps and {clip.sample_rate_hz} Hz cannot be written: "
            f"at least one frame, 1 to {MAX_FPS} fps"
        )
    if clip.waveform.ndim != 2 or clip.waveform.shape[0] != 2:
        raise MediaError(f"waveform {list(clip.waveform.shape)} must be stereo [2, samples]")
    samples = clip.waveform.shape[1]
    drift = abs(Fraction(samples, clip.sample_rate_hz) - Fraction(clip.frame_count, clip.fps))
    if drift > Fraction(1, clip.sample_rate_hz):
        raise MediaError(
            f"waveform of {samples} samples at {clip.sample_rate_hz} Hz is not as long as {clip.frame_count} frames "
            f"at {clip.fps} fps: trim it to {clip.frame_count * clip.sample_rate_hz // clip.fps}"
        )


class FrameQuantiser:
    """Turns a clip's frames into uint8 RGB, eight frames at a time, never touching the decoder's tensors.

    `lowest` and `highest` are the values seen before clamping, for the receipt.
    """

    def __init__(self, clip: Clip) -> None:
        self._clip = clip
        self.frames = 0
        self.lowest = math.inf
        self.highest = -math.inf

    def chunks(self) -> Iterator[torch.Tensor]:
        """uint8 CPU [f, H, W, 3], f <= 8, contiguous, valid until the next is asked for; see `frame_bytes`."""
        for part in frame_bytes(self._planned()):
            self._observe(part)
            self.frames += len(part.pixels)
            yield part.pixels
        if self.frames != self._clip.frame_count:
            raise DeliveryError(f"the decoder gave {self.frames} frames where {self._clip.frame_count} were planned")

    def _planned(self) -> Iterator[torch.Tensor]:
        """Frames as they come, of the clip's size and no more than its number."""
        expected, left = (3, self._clip.height, self._clip.width), self._clip.frame_count
        for frames in self._clip.frames:
            if frames.ndim != 4 or len(frames) == 0 or tuple(frames.shape[1:]) != expected:
                wanted = f"[f, {', '.join(map(str, expected))}]"
                raise DeliveryError(f"decoded frames {list(frames.shape)} are not {wanted} with f at least 1")
            left -= len(frames)
            if left < 0:
                raise DeliveryError(f"the decoder gave more than the {self._clip.frame_count} frames that were planned")
            yield frames
            del frames  # not held while the next ones are decoded

    def _observe(self, part: FrameBytes) -> None:
        low, high = part.lowest, part.highest
        if not (math.isfinite(low) and math.isfinite(high)):
            last = self.frames + len(part.pixels) - 1
            raise NonFiniteError(f"decoded frames {self.frames}..{last} hold NaN or infinity; nothing was delivered")
        if low < PIXEL_LIMITS[0] or high > PIXEL_LIMITS[1]:
            raise MediaError(f"frames hold values from {low:g} to {high:g}: they must lie in 0..1")
        self.lowest, self.highest = min(self.lowest, low), max(self.highest, high)


def pcm16(waveform: torch.Tensor) -> torch.Tensor:
    """float [2, n] -> int16 [n, 2], interleaved: clamped to [-1, 1], times 32767, rounded half to even."""
    import torch

    values = waveform.detach().to(torch.float32)
    peak = waveform_peak(values)
    if not math.isfinite(peak):
        raise NonFiniteError("the decoded waveform holds NaN or infinity; nothing was delivered")
    if peak > WAVEFORM_LIMIT:
        raise MediaError(f"the waveform reaches {peak:g}: it must lie in [-1, 1]")
    return (values.clamp(-1.0, 1.0) * 32767.0).round_().to(torch.int16).T.contiguous()


def waveform_peak(waveform: torch.Tensor) -> float:
    return float(waveform.detach().abs().max()) if waveform.numel() else 0.0
