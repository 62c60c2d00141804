"""The fixed prompt set of the gate: held-out scenes, each with its caption and the pictures a mode needs."""

from __future__ import annotations

from random import Random

import attrs
import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from tiny_h3.pool import LAST_FRAME, REFERENCE_EDGE
from tiny_h3.scenes import Scenes, describe, draw_scenes
from tiny_h3.tasks import Task
from tiny_h3.world import render_video
from vflash_adapters.judge.description import Description
from vflash_adapters.judge.write import Language, write_caption

HELD_OUT_SEED = 64_000_000
"""Far from every training seed."""
CHOICE_SEED = 63_000_000
"""For choices made while training, so that the gate's prompts decide nothing."""


@frozen(kw_only=True, eq=False)
class Prompt:
    """`expected` is what the judge holds the clip against; for a reference it names what the picture shows."""

    number: int
    task: Task
    scene: Scenes
    caption: str
    expected: Description


def prompt_set(task: Task, count: int = 64, *, seed: int = HELD_OUT_SEED) -> list[Prompt]:
    """The same for the same task, count and seed; every third prompt is Chinese."""
    scenes = draw_scenes(count, seed)
    prompts = []
    for number, description in enumerate(describe(scenes)):
        rng = Random(seed + number)
        said = description
        if task is Task.REF2VA:
            said = attrs.evolve(description, shape=None, colour=None, size=None, from_picture=True)
        language = Language.CHINESE if number % 3 == 2 else Language.ENGLISH
        expected = attrs.evolve(description, size=None) if task is Task.REF2VA else description
        prompts.append(
            Prompt(
                number=number,
                task=task,
                scene=scenes[number : number + 1],
                caption=write_caption(said, language, rng),
                expected=expected,
            )
        )
    return prompts


def pictures(prompt: Prompt, height: int, width: int) -> dict[str, NDArray[np.uint8]]:
    """What the mode is given, by condition name: uint8 RGB [H, W, 3]."""
    wanted = {
        Task.T2VA: (),
        Task.I2VA: ("first",),
        Task.L2VA: ("last",),
        Task.FL2VA: ("first", "last"),
        Task.REF2VA: ("reference",),
    }[prompt.task]
    drawn = {}
    for name in wanted:
        size = (REFERENCE_EDGE, REFERENCE_EDGE) if name == "reference" else (height, width)
        frame = LAST_FRAME if name == "last" else 0
        drawn[name] = to_picture(render_video(prompt.scene, *size, first_frame=frame, frames=1)[0, :, 0])
    return drawn


def to_picture(pixels: torch.Tensor) -> NDArray[np.uint8]:
    """[3, H, W] in [0, 1] -> uint8 [H, W, 3]."""
    return (pixels.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
