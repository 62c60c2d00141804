"""Sample a batch in training form: the released grids and Euler step, every sample at the same evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from attrs import frozen

from tiny_h3.denoiser import Noised
from tiny_h3.guidance import Guidance
from tiny_h3.model import Model
from tiny_h3.tasks import AUDIO_SHIFT, VIDEO_SHIFT, Example, Noise, shifted


@frozen(kw_only=True, eq=False)
class Rows:
    audio: torch.Tensor
    video: torch.Tensor


def grid(start: float, end: float, evaluations: int, device: torch.device) -> torch.Tensor:
    """Places on the unshifted grid, [evaluations + 1], from `start` down to `end`."""
    return torch.linspace(start, end, evaluations + 1, device=device)


@torch.no_grad()
def sample(
    model: Model,
    example: Example,
    noise: Noise,
    evaluations: int,
    parameters: Mapping[str, torch.Tensor] | None = None,
    guidance: Guidance | None = None,
) -> Rows:
    """From pure noise to data. `parameters` stand in for the model's own (a LoRA merged in, say); `guidance`,
    whose teacher must be what is sampled, is added at every evaluation."""
    places = grid(1.0, 0.0, evaluations, example.video.device)
    start = Rows(audio=noise.audio, video=noise.video)
    return integrate(model, example, start, places, model.encoder(example.ids), parameters, guidance)


@torch.no_grad()
def integrate(
    model: Model,
    example: Example,
    rows: Rows,
    places: torch.Tensor,
    text: torch.Tensor,
    parameters: Mapping[str, torch.Tensor] | None = None,
    guidance: Guidance | None = None,
) -> Rows:
    """Euler steps along `places` of the unshifted grid."""
    for now, following in pairwise(places):
        noised = at_place(example, rows, now, text)
        video, audio = model.denoiser.velocities(parameters or model.parameters, noised, example.layout)
        if guidance is not None:
            video = video + guidance.push(example, noised, said=video)
        rows = step(rows, (video, audio), now, following)
    return rows


def at_place(example: Example, rows: Rows, place: torch.Tensor, text: torch.Tensor) -> Noised:
    """Model input with every sample at `place`."""
    base = place.expand(rows.video.shape[0])
    return Noised(
        text=text,
        condition=example.condition,
        audio=rows.audio,
        video=rows.video,
        t_video=1.0 - shifted(base, VIDEO_SHIFT),
        t_audio=1.0 - shifted(base, AUDIO_SHIFT),
    )


def step(rows: Rows, velocities: tuple[torch.Tensor, torch.Tensor], now: torch.Tensor, following: torch.Tensor) -> Rows:
    """x + (sigma - sigma_next) * v: the released blend of x and x0, written out."""
    video, audio = velocities
    return Rows(
        video=rows.video + (shifted(now, VIDEO_SHIFT) - shifted(following, VIDEO_SHIFT)) * video,
        audio=rows.audio + (shifted(now, AUDIO_SHIFT) - shifted(following, AUDIO_SHIFT)) * audio,
    )


def needed_velocities(
    before: Rows, after: Rows, now: torch.Tensor, following: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The velocities with which one step leads from `before` to `after`: (video, audio)."""
    return (
        (after.video - before.video) / (shifted(now, VIDEO_SHIFT) - shifted(following, VIDEO_SHIFT)),
        (after.audio - before.audio) / (shifted(now, AUDIO_SHIFT) - shifted(following, AUDIO_SHIFT)),
    )
