"""Both trained VAEs, frozen, with the statistics of their latents: pixels and sound to rows and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from tiny_h3.audio_code import audio_code, code_statistics
from tiny_h3.audio_vae import open_audio_vae
from tiny_h3.scenes import Scenes
from tiny_h3.sizes import PATCH
from tiny_h3.stage import compute_dtype
from tiny_h3.video_vae import normalise_pixels, open_video_vae, restore_pixels
from vflash.model.patching import patchify
from vflash_adapters.tiny_checkpoint import Dimensions


@frozen(kw_only=True, eq=False)
class VideoCodec:
    vae: Any
    mean: torch.Tensor
    std: torch.Tensor

    def rows(self, pixels: torch.Tensor) -> torch.Tensor:
        """[n, 3, F, H, W] in [0, 1] -> normalised posterior means as rows, [n, T * h/2 * w/2, 96]."""
        weight = next(self.vae.encoder.parameters())
        mean = self.vae.encode(normalise_pixels(pixels).to(weight.dtype)).latent_dist.mode().float()
        normal = (mean - _per_channel(self.mean)) / _per_channel(self.std)
        return torch.stack([patchify(one[None], PATCH) for one in normal])

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """[1, 24, T, h, w] normalised -> [1, 3, F, H, W] in [0, 1]."""
        return restore_pixels(self.vae.decode(latents * _per_channel(self.std) + _per_channel(self.mean)).sample)


@frozen(kw_only=True, eq=False)
class AudioScale:
    """The statistics alone: a scene's code needs no network."""

    mean: torch.Tensor
    std: torch.Tensor

    def scene_rows(self, scenes: Scenes, canvas: tuple[int, int]) -> torch.Tensor:
        """[n, 2 * A, 32], channel-major: what the encoder is trained to give for these scenes' sound."""
        normal = (audio_code(scenes, aspect=canvas) - self.mean[:, None]) / self.std[:, None]
        return normal.transpose(2, 3).flatten(1, 2)


@frozen(kw_only=True, eq=False)
class AudioCodec:
    vae: Any
    scale: AudioScale

    def rows(self, wave: torch.Tensor) -> torch.Tensor:
        """[n, 2, samples] -> [n, 2 * A, 32], channel-major."""
        mean = self.vae.encode(wave.flatten(0, 1)[:, None]).latent_dist.mode().float()
        normal = (mean - self.scale.mean[:, None]) / self.scale.std[:, None]
        return normal.transpose(1, 2).reshape(wave.shape[0], -1, normal.shape[1])

    def decode(self, rows: torch.Tensor) -> torch.Tensor:
        """[2 * A, 32] channel-major, normalised -> [2, samples]."""
        latents = rows.float().unflatten(0, (2, -1)).transpose(1, 2)
        plain = latents * self.scale.std[:, None] + self.scale.mean[:, None]
        wave: torch.Tensor = self.vae.decode(plain).sample[:, 0]
        return wave


@frozen(kw_only=True, eq=False)
class Codecs:
    video: VideoCodec
    audio: AudioCodec


def open_codecs(sizes: Dimensions, folder: Path, device: torch.device) -> Codecs:
    return Codecs(video=open_video_codec(sizes, folder, device), audio=open_audio_codec(sizes, folder, device))


def open_video_codec(sizes: Dimensions, folder: Path, device: torch.device) -> VideoCodec:
    """The encoder in the device's compute dtype, the decoder in float32."""
    vae, facts = open_video_vae(sizes, folder / "vae.safetensors", device)
    vae.requires_grad_(False)
    for part in (vae.encoder, vae.quant_conv):
        part.to(compute_dtype(device))
    mean, std = (torch.tensor(facts[f"latents_{name}"], device=device) for name in ("mean", "std"))
    return VideoCodec(vae=vae, mean=mean, std=std)


def open_audio_codec(sizes: Dimensions, folder: Path, device: torch.device) -> AudioCodec:
    vae, _ = open_audio_vae(sizes, folder / "audio_vae.safetensors", device)
    vae.requires_grad_(False)
    return AudioCodec(vae=vae, scale=audio_scale(device))


def audio_scale(device: torch.device) -> AudioScale:
    facts = code_statistics()
    mean, std = (torch.tensor(facts[f"latents_{name}"], device=device) for name in ("mean", "std"))
    return AudioScale(mean=mean, std=std)


def _per_channel(values: torch.Tensor) -> torch.Tensor:
    return values.view(1, -1, 1, 1, 1)
