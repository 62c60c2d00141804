"""Adapters that keep what passes through them, for tests that look between the stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from vflash_ports.errors import MediaError
from vflash_ports.latent_codec import LatentCodec, LatentCodecProvider
from vflash_ports.media import Clip, Delivery
from vflash_ports.text_encoder import Part, TextConditioning, TextEncoder, TextEncoderProvider


class RecordingSink:
    """Keeps the last clip's frames and waveform, and writes a file of a few bytes in the MP4's place."""

    name = "recording"

    def __init__(self) -> None:
        self.frames = torch.empty(0)
        self.waveform = torch.empty(0)

    def check(self, output: Path) -> None:
        if output.exists():
            raise MediaError(f"output {output} exists already: choose another name")

    def write(self, clip: Clip, output: Path) -> Delivery:
        self.frames = torch.cat(list(clip.frames))
        self.waveform = clip.waveform
        output.write_bytes(b"recorded")
        return Delivery(
            path=output,
            frames=len(self.frames),
            width=clip.width,
            height=clip.height,
            fps=float(clip.fps),
            sample_rate_hz=clip.sample_rate_hz,
            audio_samples=self.waveform.shape[1],
            size_bytes=8,
            details={},
        )


class RecordingTextEncoders:
    """Hands on to another provider; counts openings and keeps the last presentation and its conditioning."""

    def __init__(self, inner: TextEncoderProvider) -> None:
        self.opened = 0
        self.presentation: Sequence[Part] = ()
        self.conditioning: TextConditioning | None = None
        self._inner = inner

    @contextmanager
    def open(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> Iterator[TextEncoder]:
        self.opened += 1
        with self._inner.open(model_dir, device=device, dtype=dtype) as encoder:
            yield _RecordingTextEncoder(self, encoder)


class _RecordingTextEncoder:
    def __init__(self, record: RecordingTextEncoders, inner: TextEncoder) -> None:
        self._record, self._inner = record, inner

    def encode(self, presentation: Sequence[Part]) -> TextConditioning:
        self._record.presentation = presentation
        self._record.conditioning = self._inner.encode(presentation)
        return self._record.conditioning


class RecordingCodecs:
    """Hands on to another provider; counts openings and keeps what was encoded since `clear`."""

    def __init__(self, inner: LatentCodecProvider) -> None:
        self.opened = 0
        self._inner = inner
        self.clear()

    def clear(self) -> None:
        self.pixels: list[torch.Tensor] = []
        self.video_conditions: list[torch.Tensor] = []
        self.audio_conditions: list[torch.Tensor] = []

    def check(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        self._inner.check(model_dir, device=device, dtype=dtype)

    @contextmanager
    def open(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> Iterator[LatentCodec]:
        self.opened += 1
        with self._inner.open(model_dir, device=device, dtype=dtype) as codec:
            yield _RecordingCodec(self, codec)


class _RecordingCodec:
    def __init__(self, record: RecordingCodecs, inner: LatentCodec) -> None:
        self._record, self._inner = record, inner
        self.decode_video = inner.decode_video
        self.decode_audio = inner.decode_audio

    def encode_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        self._record.pixels.append(pixels)
        self._record.video_conditions.append(self._inner.encode_pixels(pixels))
        return self._record.video_conditions[-1]

    def encode_waveform(self, waveform: torch.Tensor) -> torch.Tensor:
        self._record.audio_conditions.append(self._inner.encode_waveform(waveform))
        return self._record.audio_conditions[-1]
