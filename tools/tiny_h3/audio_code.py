"""The audio latents: a code with a meaning for each channel, which both halves of the audio VAE learn.

A sound of this world is a tone on the latent grid, so 32 numbers a frame say all of it. Learning to one given code is
two plain regressions; left to itself, the autoencoder forgot its latents before it found the phase of a tone.
"""

from __future__ import annotations

import torch

from tiny_h3.scenes import Scenes, draw_scenes
from tiny_h3.world import (
    CLICK_DECAY_S,
    CLICK_LATENTS,
    FRAMES,
    audio_latents,
    beats,
    clicks,
    frame_gains,
    harmonics,
    since_click,
    tone_edges,
)

LOWEST, BINS_AN_OCTAVE, BINS = 6.0, 8.0, 25
BIN_WIDTH = 0.8
STATISTICS_CLIPS, STATISTICS_SEED = 512, 999_000
SWITCHES = ("on", "attack", "release", "ring", "click", "level", "next level")


def audio_code(scenes: Scenes, *, frames: int = FRAMES, aspect: tuple[int, int] = (96, 128)) -> torch.Tensor:
    """float32 [n, 2, 32, latents]: left and right. `SWITCHES`, then the pitch as a bump over `BINS` bins.

    `on` a tone, `attack` and `release` its first and last frame; `ring` the strength of a click's ringing, `click` its
    first frame; `level` the gain of the channel where the frame starts and where it ends. All are zero in silence.
    """
    latents = audio_latents(frames)
    on = beats(scenes, latents)
    since = since_click(clicks(scenes, latents))
    ringing = since.lt(CLICK_LATENTS)
    sounding = (on | ringing).float()[:, None]
    ring = torch.where(ringing, torch.exp(-since / 40.0 / CLICK_DECAY_S), 0.0)
    shared = torch.stack([on.float(), *(edge.float() for edge in tone_edges(on)), ring, since.eq(0).float()], dim=1)
    levels = frame_gains(scenes, latents, aspect)
    place = BINS_AN_OCTAVE * torch.log2(harmonics(scenes, latents) / LOWEST)
    bins = torch.arange(BINS, device=place.device)[:, None]
    pitch = torch.exp(-0.5 * ((place[:, None] - bins) / BIN_WIDTH).square())
    both = torch.cat([shared, pitch * sounding], dim=1)
    sides = [torch.stack([gain[:, :-1], gain[:, 1:]], dim=1) * sounding for gain in levels]
    count = len(SWITCHES) - 2
    return torch.stack([torch.cat([both[:, :count], side, both[:, count:]], dim=1) for side in sides], dim=1)


def code_statistics() -> dict[str, list[float]]:
    """Per-channel mean and standard deviation of the codes of whole clips; what the config stores. Made on the CPU, so
    that they are the same everywhere."""
    flat = audio_code(draw_scenes(STATISTICS_CLIPS, STATISTICS_SEED)).transpose(0, 2).flatten(1)
    return {"latents_mean": flat.mean(1).tolist(), "latents_std": flat.std(1).clamp(min=1e-2).tolist()}
