"""The modes the denoiser learns, and how a batch of one is laid out and noised."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

import torch
from attrs import frozen

from tiny_h3.denoiser import CONDITION_T, BatchLayout, Noised, batch_layout
from tiny_h3.pool import REFERENCE_EDGE, Pool
from tiny_h3.sizes import PATCH
from tiny_h3.text import Presenter
from tiny_h3.text_encoder import TextEncoder
from tiny_h3.world import AUDIO_LATENTS
from vflash.domain.model_facts import DenoiserFacts
from vflash.domain.packing import Condition, Keyframe, PictureBlock, pack
from vflash.model.positions import index_rows

LATENT_FRAMES = 37
VIDEO_SHIFT, AUDIO_SHIFT = 12.0, 3.0
UNSAID = 0.1
"""Share of captions that text alone is not told, so that guidance knows what the caption adds."""


class Task(StrEnum):
    T2VA = "t2va"
    I2VA = "i2va"
    L2VA = "l2va"
    FL2VA = "fl2va"
    REF2VA = "ref2va"


_LATENT_EDGE = REFERENCE_EDGE // 16
_CONDITIONS: dict[Task, tuple[tuple[str, Condition], ...]] = {
    Task.T2VA: (),
    Task.I2VA: (("first", Keyframe(last=False)),),
    Task.L2VA: (("last", Keyframe(last=True)),),
    Task.FL2VA: (("first", Keyframe(last=False)), ("last", Keyframe(last=True))),
    Task.REF2VA: (("reference", PictureBlock(height=_LATENT_EDGE, width=_LATENT_EDGE)),),
}


def pictures_of(task: Task) -> int:
    return len(_CONDITIONS[task])


@frozen(kw_only=True, eq=False)
class Example:
    """A batch before noise. `ids` [B, Lt] on the device; rows float32; `condition` already at t = 0.999."""

    ids: torch.Tensor
    condition: torch.Tensor | None
    audio: torch.Tensor
    video: torch.Tensor
    layout: BatchLayout


class Laying:
    """Layouts by (task, canvas, prompt length), made once each."""

    def __init__(self, presenter: Presenter, facts: DenoiserFacts, device: torch.device, dtype: torch.dtype) -> None:
        self.presenter, self.facts, self.device, self.dtype = presenter, facts, device, dtype
        self.layout = lru_cache(maxsize=None)(self._layout)
        self.prefix = lru_cache(maxsize=None)(presenter.pictures)
        self.head = lru_cache(maxsize=None)(self._head)

    def draw(self, pool: Pool, task: Task, batch: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Clip numbers [batch] and caption ids [batch, length], on the device."""
        clips, prompts = pool.draw(batch, generator, pictured=task is Task.REF2VA)
        if task is Task.T2VA:
            unsaid = torch.rand(batch, 1, generator=generator) < UNSAID
            prompts = torch.where(unsaid, self.presenter.silent, prompts)
        return clips.to(self.device), prompts.to(self.device)

    def example(self, pool: Pool, task: Task, clips: torch.Tensor, prompts: torch.Tensor) -> Example:
        """Of what `draw` gave. Nothing is drawn or copied on the host, so that a CUDA graph can hold it."""
        chosen = {name: getattr(pool, name)[clips].float() for name, _ in _CONDITIONS[task]}
        return self.assemble(
            task, (pool.height, pool.width), prompts, pool.video[clips].float(), pool.audio[clips].float(), chosen
        )

    def assemble(
        self,
        task: Task,
        canvas: tuple[int, int],
        prompts: torch.Tensor,
        video: torch.Tensor,
        audio: torch.Tensor,
        pictures: dict[str, torch.Tensor],
    ) -> Example:
        """`pictures`: clean rows by the task's own condition names; they are noised here."""
        head = self.head(task).expand(len(prompts), -1)
        clean = [pictures[name] for name, _ in _CONDITIONS[task]]
        condition = None
        if clean:
            rows = torch.cat(clean, dim=1)
            condition = CONDITION_T * rows + (1.0 - CONDITION_T) * torch.randn_like(rows)
        return Example(
            ids=torch.cat([head, prompts.to(self.device)], dim=1),
            condition=condition,
            audio=audio,
            video=video,
            layout=self.layout(task, canvas, prompts.shape[1]),
        )

    def _head(self, task: Task) -> torch.Tensor:
        return torch.tensor(self.prefix(pictures_of(task))[0], dtype=torch.int64, device=self.device)

    def _layout(self, task: Task, canvas: tuple[int, int], prompt_rows: int) -> BatchLayout:
        ids, tags = self.prefix(pictures_of(task))
        layout = pack(
            text_rows=len(ids) + prompt_rows,
            conditions=[block for _, block in _CONDITIONS[task]],
            latent_frames=LATENT_FRAMES,
            latent_height=canvas[0] // 16,
            latent_width=canvas[1] // 16,
            audio_latents=AUDIO_LATENTS,
            patch=PATCH,
        )
        index = index_rows(layout, torch.tensor([*tags, *[1] * prompt_rows]))
        return batch_layout(index, self.facts, self.device, self.dtype)


@frozen(kw_only=True, eq=False)
class Noise:
    audio: torch.Tensor
    video: torch.Tensor


def draw_noise(example: Example) -> Noise:
    return Noise(audio=torch.randn_like(example.audio), video=torch.randn_like(example.video))


def noised_at(example: Example, noise: Noise, base: torch.Tensor, encoder: TextEncoder) -> Noised:
    """`base` [B] in [0, 1] is the place on the unshifted grid, 1 at the start; both modalities share it."""
    video_sigma, audio_sigma = shifted(base, VIDEO_SHIFT), shifted(base, AUDIO_SHIFT)
    return Noised(
        text=encoder(example.ids),
        condition=example.condition,
        audio=_mix(example.audio, noise.audio, audio_sigma),
        video=_mix(example.video, noise.video, video_sigma),
        t_video=1.0 - video_sigma,
        t_audio=1.0 - audio_sigma,
    )


def shifted(base: torch.Tensor, shift: float) -> torch.Tensor:
    return shift * base / (1.0 + (shift - 1.0) * base)


def draw_base(count: int, device: torch.device) -> torch.Tensor:
    """Mostly even along the grid that sampling walks, stratified; some more at low video noise, some at the start."""
    even = (torch.arange(count, device=device) + torch.rand(count, device=device)) / count
    sigma = torch.rand(count, device=device)
    low = sigma / (VIDEO_SHIFT - (VIDEO_SHIFT - 1.0) * sigma)
    kind = torch.rand(count, device=device)
    base = torch.where(kind < 0.2, low, even[torch.rand(count, device=device).argsort()])
    return torch.where(kind > 0.97, 1.0, base).clamp(min=1e-4)


def _mix(clean: torch.Tensor, noise: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    share = sigma[:, None, None]
    return (1.0 - share) * clean + share * noise
