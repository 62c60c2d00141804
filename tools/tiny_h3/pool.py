"""Encoded clips to train the denoiser on: latents as rows on the device, captions as token ids by length."""

from __future__ import annotations

import time
from collections import defaultdict
from random import Random
from typing import Any

import torch
from attrs import define, frozen

from tiny_h3.codecs import AudioScale, VideoCodec
from tiny_h3.scenes import describe, draw_scenes
from tiny_h3.text import Presenter, training_caption
from tiny_h3.world import render_video

LAST_FRAME = 119
"""The last delivered frame: what a last keyframe shows."""
REFERENCE_EDGE = 64
CAPTIONS_EACH = 3
SECOND_CHANCE = 0.5
"""More second objects than the world has otherwise: they are the hardest to learn from text."""


@frozen(kw_only=True, eq=False)
class CaptionBucket:
    """Captions of one length: `clips` [n] and `ids` [n, length], on the CPU."""

    clips: torch.Tensor
    ids: torch.Tensor


@define(kw_only=True, eq=False)
class Pool:
    """Clips of one canvas. Rows are [P, rows, width]; `first`, `last` and `reference` are single encoded pictures."""

    height: int
    width: int
    video: torch.Tensor
    audio: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    reference: torch.Tensor
    plain: list[CaptionBucket]
    pictured: list[CaptionBucket]

    @property
    def count(self) -> int:
        return int(self.video.shape[0])

    def draw(self, batch: int, generator: torch.Generator, *, pictured: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Clip numbers [batch] and caption ids [batch, length], all of one length, both on the CPU."""
        buckets = self.pictured if pictured else self.plain
        weights = torch.tensor([float(len(bucket.clips)) for bucket in buckets])
        bucket = buckets[int(torch.multinomial(weights, 1, generator=generator))]
        rows = torch.randint(len(bucket.clips), (batch,), generator=generator)
        return bucket.clips[rows], bucket.ids[rows]


@frozen(kw_only=True)
class PoolPlan:
    """How many clips of each canvas, and when to stop early; both canvases then have fewer, in proportion."""

    canvases: tuple[tuple[int, int], ...]
    shares: tuple[float, ...]
    clips: int
    seconds: float
    chunk: int = 32
    seed: int = 500_000


@torch.no_grad()
def fill_pools(
    plan: PoolPlan, video: VideoCodec, audio: AudioScale, presenter: Presenter, device: torch.device
) -> list[Pool]:
    """Render and encode until the counts or the time is reached."""
    builders = [_Builder(c, plan.seed + 1_000_000 * i, presenter) for i, c in enumerate(plan.canvases)]
    begin, made = time.perf_counter(), 0
    shares = torch.tensor(plan.shares) / sum(plan.shares)
    while made < plan.clips and (made == 0 or time.perf_counter() - begin < plan.seconds):
        for builder, share in zip(builders, shares.tolist(), strict=True):
            while builder.count < share * (made + plan.chunk * len(builders)):
                builder.add(plan.chunk, builder.seed + builder.count, video, audio, device)
        made = sum(builder.count for builder in builders)
    return [builder.pool() for builder in builders]


class _Builder:
    def __init__(self, canvas: tuple[int, int], seed: int, presenter: Presenter) -> None:
        self.canvas, self.seed, self.presenter = canvas, seed, presenter
        self.parts: dict[str, list[torch.Tensor]] = defaultdict(list)
        self.captions: dict[bool, dict[int, list[tuple[int, list[int]]]]] = {
            False: defaultdict(list),
            True: defaultdict(list),
        }
        self.count = 0

    def add(self, count: int, seed: int, video: VideoCodec, audio: AudioScale, device: torch.device) -> None:
        cpu_scenes = draw_scenes(count, seed, second_chance=SECOND_CHANCE)
        scenes, (height, width) = cpu_scenes.to(device), self.canvas
        pixels = render_video(scenes, height, width)
        single = {
            "first": pixels[:, :, :1],
            "last": pixels[:, :, LAST_FRAME : LAST_FRAME + 1],
            "reference": render_video(scenes, REFERENCE_EDGE, REFERENCE_EDGE, frames=1),
        }
        self._keep("video", video.rows(pixels))
        self._keep("audio", audio.scene_rows(scenes, self.canvas))
        for name, picture in single.items():
            self._keep(name, video.rows(picture))
        rng = Random(seed)
        descriptions = describe(cpu_scenes)
        for pictured in (False, True):
            said = [
                (self.count + i, training_caption(d, rng, from_picture=pictured))
                for i, d in enumerate(descriptions)
                for _ in range(CAPTIONS_EACH)
            ]
            for (clip, _), ids in zip(said, self.presenter.prompts([c for _, c in said]), strict=True):
                self.captions[pictured][len(ids)].append((clip, ids))
        self.count += count

    def pool(self) -> Pool:
        height, width = self.canvas
        plain, pictured = (
            [
                CaptionBucket(clips=torch.tensor([c for c, _ in rows]), ids=torch.tensor([i for _, i in rows]))
                for rows in self.captions[kind].values()
            ]
            for kind in (False, True)
        )
        rows: dict[str, Any] = {name: torch.cat(parts) for name, parts in self.parts.items()}
        return Pool(height=height, width=width, plain=plain, pictured=pictured, **rows)

    def _keep(self, name: str, rows: torch.Tensor) -> None:
        self.parts[name].append(rows.to(torch.bfloat16 if rows.is_cuda else torch.float32))
