"""Latent codec: the video and the audio VAE, in normalised latent space."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class LatentCodec(Protocol):
    def encode_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """uint8 RGB [F, H, W, 3] -> float32 CPU [1, C, T, H/16, W/16].

        The posterior is sampled with seed 42 and rounded through float16, as the released model does.
        """
        ...

    def encode_waveform(self, waveform: torch.Tensor) -> torch.Tensor:
        """float32 stereo [2, samples] at the codec's rate -> float32 CPU [2, A, audio_C], the posterior mean."""
        ...

    def decode_video(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        """float32 [1, C, T, h, w] -> chunks of float32 frames [f, 3, H, W] in [0, 1], in order, on the codec's device.

        On the CPU they are finite, or `NonFiniteError` is raised. On another device their work may still be queued, and
        what is not finite is NaN, never clamped: `FrameQuantiser`, or whoever else reads them, refuses it.
        """
        ...

    def decode_audio(self, latents: torch.Tensor) -> torch.Tensor:
        """float32 [2, audio_C, A] -> float32 CPU [2, A * hop] in [-1, 1]."""
        ...


class LatentCodecProvider(Protocol):
    """Opens the VAEs for a scope; each is loaded at its first use and released when the scope ends."""

    def check(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        """Raises `UnsupportedError`, with the cure, before any weight is read, if this machine cannot decode so."""
        ...

    def open(
        self, model_dir: Path, *, device: torch.device, dtype: torch.dtype
    ) -> AbstractContextManager[LatentCodec]: ...
