"""How strongly to guide text alone: what the judge likes best, on prompts that the gate does not use."""

from __future__ import annotations

from tiny_h3.codecs import Codecs
from tiny_h3.evaluate import evaluate
from tiny_h3.guidance import Guidance
from tiny_h3.judges import judges
from tiny_h3.model import Model
from tiny_h3.prompts import CHOICE_SEED
from tiny_h3.stage import Log
from tiny_h3.tasks import Task
from tiny_h3.text import Presenter

SCALES = (1.0, 1.5, 2.0, 3.0)
EVALUATIONS = 8
PROMPTS = 32
WORTH = 0.03
"""Share of attributes that guidance must bring to be taken into the weights: over 32 prompts less may be chance."""


def best_scale(
    model: Model, codecs: Codecs, presenter: Presenter, log: Log, *, canvas: tuple[int, int], prompts: int
) -> float:
    """One of `SCALES`; 1, which is no guidance, where it brings less than `WORTH`. `canvas` is (height, width);
    `prompts` at most, and no more than `PROMPTS`."""
    found: dict[float, float] = {}
    with judges(codecs.video.mean.device) as workers:
        for scale in SCALES:
            guidance = Guidance(teacher=model, silent=presenter.silent, scale=scale) if scale != 1.0 else None
            scores, _ = evaluate(
                model,
                codecs,
                presenter,
                Task.T2VA,
                evaluations=EVALUATIONS,
                canvas=canvas,
                count=min(PROMPTS, prompts),
                guidance=guidance,
                seed=CHOICE_SEED,
                workers=workers,
            )
            found[scale] = scores.shares()["all"]
            log.write(scale=scale, **scores.shares())
    best = max(found, key=lambda scale: found[scale])
    return best if found[best] > found[1.0] + WORTH else 1.0
