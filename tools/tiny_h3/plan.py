"""What one training run is to do, and when each of its stages ends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen
from attrs.validators import max_len

from tiny_h3.sizes import FULL, TOY
from tiny_h3.stage import Budget
from vflash_adapters.tiny_checkpoint import Dimensions

ENDS = {
    "audio on its own": 0.25,
    "vae": 0.23,
    "pools": 0.29,
    "denoiser": 0.68,
    "guided": 0.78,
    "reference": 0.83,
    "turbo": 0.92,
    "veda": 0.945,
}
"""When each stage ends, as a share of the whole time; sampling and judging have the rest."""
ENDS_WITH_VAE = {**ENDS, "vae": 0.01, "pools": 0.08}
"""In a folder that holds the video VAE."""
CANVASES = ((96, 128), (96, 96), (128, 96), (64, 64))
CANVAS_SHARES = (0.6, 0.15, 0.15, 0.1)


@frozen(kw_only=True)
class RunPlan:
    """`steps` limits every stage (a smoke test); `seconds` is the whole run's time. `toy` uses the toy dimensions.
    `canvases` are (height, width), at most as many as there are shares; the first is the one that is judged."""

    folder: Path
    seconds: float
    steps: int | None = None
    toy: bool = False
    clips: int = 48_000
    batch: int = 64
    prompts: int = 64
    compiled: bool = True
    audio_beside: bool = True
    pool_seed: int = 500_000
    canvases: tuple[tuple[int, int], ...] = field(default=CANVASES, validator=max_len(len(CANVAS_SHARES)))

    @property
    def sizes(self) -> Dimensions:
        return TOY if self.toy else FULL

    @property
    def log(self) -> Path:
        return self.path("log.jsonl")

    def path(self, name: str) -> Path:
        return self.folder / name


@frozen(kw_only=True)
class Clock:
    """How long each stage may still take. It starts when it is made."""

    plan: RunPlan
    ends: Mapping[str, float]
    begin: float = field(factory=time.perf_counter)

    def seconds(self, stage: str) -> float:
        """At least one, however late it is."""
        return max(self.ends[stage] * self.plan.seconds - (time.perf_counter() - self.begin), 1.0)

    def budget(self, stage: str) -> Budget:
        return Budget(seconds=self.seconds(stage), steps=self.plan.steps)
