"""One run of the bench: requests through an engine, their figures, and a JSON that is written after each of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from attrs import define, field

from request_bench.engines import Engines
from request_bench.figures import profile_figures, request_figures
from request_bench.sizes import Scale, prompt_of
from request_bench.weights import RandomOpener
from vflash.domain.canvas import Canvas
from vflash.engine import Engine
from vflash.pipeline import VideoRequest, VideoResult
from vflash_adapters.media.latent_store import SafetensorsLatentStore
from vflash_adapters.tiny_checkpoint import StoredDtype
from vflash_adapters.tiny_checkpoint.layout import write_configs


class OutOfTimeError(Exception):
    """The deadline does not leave the time: it was not started."""


@define(kw_only=True, eq=False)
class Run:
    """`folder` takes the configs, clips and latents; `report` is what `output` holds as JSON."""

    scale: Scale
    folder: Path
    output: Path
    deadline_s: float
    report: dict[str, Any] = field(factory=dict)
    engines: Engines = field(init=False)
    prompt: str = field(init=False)
    _took: dict[str, float] = field(factory=dict, init=False)
    _started: float = field(factory=perf_counter, init=False)

    def __attrs_post_init__(self) -> None:
        self.save("begun", 0.0)  # an output that cannot be written is found before anything is paid for
        model_dir = self.folder / "model"
        write_configs(model_dir, self.scale.dimensions, StoredDtype.MIXED)
        opener = RandomOpener(device=self.scale.device)
        self.engines = Engines(model_dir=model_dir, opener=opener, scale=self.scale)
        self.prompt = prompt_of(model_dir, self.scale.text_rows)

    @property
    def elapsed_s(self) -> float:
        return perf_counter() - self._started

    def request(
        self,
        engine: Engine,
        section: str,
        figures: dict[str, Any],
        run: str,
        canvas: Canvas,
        *,
        steps: int | None = None,
        profiled: bool = False,
    ) -> None:
        """One clip; its latents stay under `latents(section, run)`."""
        asked = self.asked(canvas, steps=steps, save_latents=self.latents(section, run))
        result, wall_s = self.timed(
            f"{section} {run}",
            lambda output: engine.generate(asked, output, profile_denoise=profiled),
            like=f"{section} {canvas}",
        )
        figures[run] = {"canvas": str(canvas), **request_figures(result, wall_s)}
        if profiled:
            figures[run]["profile"] = profile_figures(result.receipt)
        self.save(f"{section} {run}", wall_s)

    def timed(self, name: str, run: Callable[[Path], VideoResult], *, like: str) -> tuple[VideoResult, float]:
        """Not started where the last run that was `like` it took longer than there is left."""
        self.check_time(name, self._took.get(like, 0.0))
        started = perf_counter()
        result = run(self.folder / f"{name}.mp4")
        self._took[like] = perf_counter() - started
        return result, self._took[like]

    def asked(self, canvas: Canvas, steps: int | None = None, save_latents: Path | None = None) -> VideoRequest:
        return VideoRequest(
            prompt=self.prompt,
            width=canvas.width,
            height=canvas.height,
            steps=steps or self.scale.evaluations,
            seed=1,
            save_latents=save_latents,
        )

    def latents(self, section: str, run: str) -> Path:
        return self.folder / f"{section} {run}.safetensors"

    def same(self, one: tuple[str, str], other: tuple[str, str]) -> bool | None:
        """Whether two requests ended in the same latents, bit for bit; None where one of them was not made."""
        paths = self.latents(*one), self.latents(*other)
        if not all(path.exists() for path in paths):
            return None
        first, second = (SafetensorsLatentStore().load(path) for path in paths)
        return torch.equal(first.video, second.video) and torch.equal(first.audio, second.audio)

    def check_time(self, what: str, needed_s: float = 0.0) -> None:
        """Raises `OutOfTimeError` where `needed_s` more would pass the deadline."""
        if self.elapsed_s + needed_s > self.deadline_s:
            raise OutOfTimeError(f"{what}: {self.deadline_s - self.elapsed_s:.0f} s are left")

    def save(self, what: str, seconds: float) -> None:
        self.output.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        print(f"[{self.elapsed_s:6.1f} s] {what}: {seconds:.2f} s", flush=True)
