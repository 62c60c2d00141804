"""Media in and out: reference pictures, videos and sounds; the delivered clip; kept latents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import torch


@frozen(kw_only=True, eq=False)
class ReferenceClip:
    """A decoded reference: `frames` uint8 RGB [F, H, W, 3] at 24 fps, `waveform` float32 [2, n] at the asked rate."""

    frames: torch.Tensor | None
    waveform: torch.Tensor | None


class PictureFit(StrEnum):
    """How a picture of another shape meets its target size."""

    STRETCH = "stretch"
    COVER = "cover"  # scaled to cover, then cut around the centre


class ReferenceReader(Protocol):
    """Reads what a user hands in. Sizes are checked before decoding; hostile files raise `MediaError`."""

    def picture(self, path: Path) -> torch.Tensor:
        """uint8 RGB [H, W, 3], EXIF orientation applied."""
        ...

    def fit_picture(self, pixels: torch.Tensor, width: int, height: int, mode: PictureFit) -> torch.Tensor:
        """uint8 RGB [..., H, W, 3] -> [..., height, width, 3], LANCZOS; pixels of that size pass unchanged."""
        ...

    def video(
        self,
        path: Path,
        *,
        max_frames: int,
        sample_rate_hz: int,
        size: Callable[[int, int], tuple[int, int]] | None = None,
    ) -> ReferenceClip:
        """Resampled to 24 fps by repeat and drop, cut to `max_frames`, with its soundtrack if it has one.

        `size` maps the upright source (width, height) to the size that frames are stretched to while they are read,
        so that a large source is never held whole.
        """
        ...

    def audio(self, path: Path, *, max_seconds: float, sample_rate_hz: int) -> ReferenceClip:
        """Cut to `max_seconds` at its own rate, mono repeated to stereo, then resampled."""
        ...


@frozen(kw_only=True, eq=False)
class Clip:
    """What is delivered. `frames` yields float32 [f, 3, H, W] in [0, 1], exactly `frame_count` in all, while the
    decoder may still run, and on its device: a sink checks them there for NaN, and for what lies outside the range.
    `waveform` float32 CPU [2, samples] in [-1, 1]; samples/rate = frame_count/fps."""

    width: int
    height: int
    frame_count: int
    fps: int
    frames: Iterator[torch.Tensor]
    waveform: torch.Tensor
    sample_rate_hz: int


@frozen(kw_only=True)
class Delivery:
    """What was written, measured on the written file."""

    path: Path
    frames: int
    width: int
    height: int
    fps: float
    sample_rate_hz: int
    audio_samples: int
    size_bytes: int
    details: Mapping[str, Any]


class MediaSink(Protocol):
    @property
    def name(self) -> str: ...

    def check(self, output: Path) -> None:
        """Before any work: refuse an existing output, a missing folder, a missing encoder, with the cure."""
        ...

    def write(self, clip: Clip, output: Path) -> Delivery:
        """Encode and publish atomically, never over an existing file; on failure nothing is left behind."""
        ...


@frozen(kw_only=True, eq=False)
class Latents:
    """Finished target latents: `video` float32 [1, C, T, h, w], `audio` float32 [2, audio_C, A], normalised space."""

    video: torch.Tensor
    audio: torch.Tensor
    metadata: Mapping[str, str]


class LatentStore(Protocol):
    """Keeps latents so that a decode that fails does not cost the denoising."""

    def check(self, path: Path) -> None: ...

    def save(self, latents: Latents, path: Path) -> None:
        """Atomic, never over an existing file."""
        ...

    def load(self, path: Path) -> Latents: ...
