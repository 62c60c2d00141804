"""The reader of reference pictures, videos and sounds: Pillow, PyAV and our own resampler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import field, frozen

from vflash_adapters.media.picture_fit import fit_picture
from vflash_adapters.media.reference_audio import read_sound, read_soundtrack
from vflash_adapters.media.reference_limits import ReferenceLimits
from vflash_adapters.media.reference_picture import read_picture
from vflash_adapters.media.reference_video import read_frames
from vflash_ports.errors import MediaError
from vflash_ports.media import PictureFit, ReferenceClip

if TYPE_CHECKING:
    import torch


@frozen(kw_only=True)
class FileReferenceReader:
    """`fps` is the model's clock. The rules are in docs/media.md; every refusal is a `MediaError`."""

    fps: int = 24
    limits: ReferenceLimits = field(factory=ReferenceLimits)

    def picture(self, path: Path) -> torch.Tensor:
        return read_picture(path, self.limits)

    def fit_picture(self, pixels: torch.Tensor, width: int, height: int, mode: PictureFit) -> torch.Tensor:
        return fit_picture(pixels, width, height, mode)

    def video(
        self,
        path: Path,
        *,
        max_frames: int,
        sample_rate_hz: int,
        size: Callable[[int, int], tuple[int, int]] | None = None,
    ) -> ReferenceClip:
        if max_frames < 1:
            raise MediaError(f"video {path}: {max_frames} frames were asked for, at least one is needed")
        frames = read_frames(path, fps=self.fps, max_frames=max_frames, size=size, limits=self.limits)
        waveform = read_soundtrack(
            path, max_seconds=max_frames / self.fps, sample_rate_hz=sample_rate_hz, limits=self.limits
        )
        return ReferenceClip(frames=frames, waveform=waveform)

    def audio(self, path: Path, *, max_seconds: float, sample_rate_hz: int) -> ReferenceClip:
        waveform = read_sound(path, max_seconds=max_seconds, sample_rate_hz=sample_rate_hz, limits=self.limits)
        return ReferenceClip(frames=None, waveform=waveform)
