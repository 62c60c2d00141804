"""Sample every mode of a run's denoisers and let the judge say how many attributes are right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch

from tiny_h3.codecs import Codecs
from tiny_h3.evaluate import Sampled, evaluate
from tiny_h3.judges import judges
from tiny_h3.model import Model, open_model
from tiny_h3.plan import RunPlan
from tiny_h3.sheet import Strip, drawn
from tiny_h3.stage import Log
from tiny_h3.tasks import Task
from tiny_h3.text import Presenter
from tiny_h3.train_denoiser import KEYFRAMES_ONLY
from tiny_h3.turbo import EVALUATIONS, load_adapter, merged

SHEET_CLIPS, SHEET_FRAMES = 16, 8


def judge_modes(plan: RunPlan, codecs: Codecs, presenter: Presenter, device: torch.device, log: Log) -> None:
    """The judge's shares by mode: sixteen evaluations, then the adapter's four; and a sheet of each."""
    results: dict[str, dict[str, float]] = {}
    with judges(device) as workers:
        for label, task, evaluations, model, parameters in _runs(plan, presenter, device):
            scores, made = evaluate(
                model,
                codecs,
                presenter,
                task,
                evaluations=evaluations,
                canvas=plan.canvases[0],
                count=plan.prompts,
                parameters=parameters,
                workers=workers,
            )
            results[label] = scores.shares()
            log.write(judged=label, **results[label])
            strips = [_strip(sampled) for sampled in made[:SHEET_CLIPS]]
            drawn(strips, columns=1, frames=SHEET_FRAMES).save(plan.path(f"sheet-{label}.png"), optimize=True)
            plan.path("judged.json").write_text(json.dumps(results, indent=1) + "\n")


Run = tuple[str, Task, int, Model, "Mapping[str, torch.Tensor] | None"]


def _runs(plan: RunPlan, presenter: Presenter, device: torch.device) -> Iterator[Run]:
    for name, tasks in (("transformer", list(KEYFRAMES_ONLY)), ("transformer_ref", [Task.REF2VA])):
        model, _ = open_model(plan.sizes, presenter, plan.path(f"{name}.safetensors"), device, compiled=False)
        for task in tasks:
            yield f"{task}-16", task, 16, model, None
        adapter = plan.path("turbo.safetensors")
        if name == "transformer" and adapter.exists():
            factors = {key: value.to(device) for key, value in load_adapter(adapter).items()}
            turbo = merged(model, factors, next(iter(factors.values())).shape[0])
            for task in tasks:
                yield f"{task}-turbo{EVALUATIONS}", task, EVALUATIONS, model, turbo


def _strip(sampled: Sampled) -> Strip:
    """Pillow's own font has no Chinese: such a caption is named by its number."""
    prompt = sampled.prompt
    caption = prompt.caption if prompt.caption.isascii() else f"prompt {prompt.number}"
    return Strip(caption=caption, note="", frames=sampled.clip.frames)
