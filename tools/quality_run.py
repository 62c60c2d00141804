"""One worker of the gate: its share of every prompt set through the product, a record on disk for each clip."""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from PIL import Image

from quality_configurations import EXACT, Configuration
from quality_measure import Trajectory, psnr_db, recorded, sound_snr_db, ssim, teacher_forced
from quality_reading import Reader, read
from quality_report import DISTANCES, Record
from tiny_h3.prompts import Prompt, pictures, prompt_set
from tiny_h3.tasks import Task
from vflash.pipeline import H3Pipeline, VideoRequest
from vflash_adapters.judge.reading import PlayedClip
from vflash_adapters.judge.verdict import judge, measure

WHOLE_SET = 64


@frozen(kw_only=True)
class Plan:
    """`forced` prompts of each mode have their velocities compared. `until`: no clip begins after this Unix time."""

    model: Path
    work: Path
    settings: Mapping[str, Any]
    configurations: Mapping[str, Configuration]
    prompts: int
    forced: int
    height: int
    width: int
    reader: Reader = Reader.PYAV
    workers: int = 1
    until: float | None = None

    def cells(self) -> Iterator[tuple[Task, str]]:
        """Mode by mode, in the order of the report."""
        tasks = [task for task in Task if any(task in c.tasks for c in self.configurations.values())]
        return ((task, name) for task in tasks for name, c in self.configurations.items() if task in c.tasks)

    def path(self, task: Task, name: str, file: str) -> Path:
        path = self.work / task / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def is_late(self) -> bool:
        return self.until is not None and time.time() > self.until


def claim_work(plan: Plan) -> None:
    """A work folder belongs to one model, device, precision and canvas: its clips would be taken for others' else."""
    digest = hashlib.sha256()
    for path in sorted(plan.model.rglob("*.safetensors")):
        digest.update(path.read_bytes())
    settings = {name: str(value) for name, value in plan.settings.items()}
    facts = {"weights": digest.hexdigest(), "canvas": [plan.width, plan.height], "set": max(WHOLE_SET, plan.prompts)}
    claim = json.dumps({**facts, **settings}, sort_keys=True)
    plan.work.mkdir(parents=True, exist_ok=True)
    file = plan.work / "claim.json"
    if file.exists() and file.read_text() != claim:
        raise ValueError(f"{plan.work} holds clips of another model, device or canvas; name another --work folder")
    file.write_text(claim)


def run_share(plan: Plan, worker: int) -> None:
    """Every `workers`-th prompt of every cell. A configuration that fails is noted in its mode; the rest goes on."""
    for name, configuration in plan.configurations.items():
        todo = {task: prompts for task in configuration.tasks if (prompts := _missing(plan, task, name, worker))}
        for task in todo:
            _note_path(plan, task, name, worker).unlink(missing_ok=True)
        if todo and not plan.is_late:
            with _pipeline(plan, configuration) as pipeline:
                # A failed execution retires its pipeline.
                all(_run_mode(plan, pipeline, name, prompts, worker) for prompts in todo.values())


def _run_mode(plan: Plan, pipeline: H3Pipeline, name: str, prompts: list[Prompt], worker: int) -> bool:
    """False if it failed: one variant that a machine cannot run must not cost what the others have to say."""
    try:
        for prompt in prompts:
            if not plan.is_late:
                _measure(plan, pipeline, prompt, name).save(_record_path(plan, prompt, name))
    except Exception:
        _note_path(plan, prompts[0].task, name, worker).write_text(traceback.format_exc()[-2000:])
        return False
    return True


def records(plan: Plan, task: Task, name: str) -> list[Record]:
    paths = (_record_path(plan, prompt, name) for prompt in _prompts(plan, task))
    return [Record.load(path) for path in paths if path.exists()]


def failures(plan: Plan, task: Task, name: str) -> list[str]:
    return [path.read_text() for path in sorted(plan.path(task, name, "").glob("failed-*.txt"))]


def _missing(plan: Plan, task: Task, name: str, worker: int) -> list[Prompt]:
    return [prompt for prompt in _prompts(plan, task)[worker :: plan.workers] if not _is_done(plan, prompt, name)]


def _prompts(plan: Plan, task: Task) -> list[Prompt]:
    """A short run takes the first ones of the whole set; a set of another size would hold other scenes."""
    return prompt_set(task, max(WHOLE_SET, plan.prompts))[: plan.prompts]


def _is_done(plan: Plan, prompt: Prompt, name: str) -> bool:
    walked = name != EXACT or prompt.number >= plan.forced or _trajectory_path(plan, prompt).exists()
    return walked and _record_path(plan, prompt, name).exists()


def _note_path(plan: Plan, task: Task, name: str, worker: int) -> Path:
    return plan.path(task, name, f"failed-{worker}.txt")


def _record_path(plan: Plan, prompt: Prompt, name: str) -> Path:
    return plan.path(prompt.task, name, f"{prompt.number}.json")


def _measure(plan: Plan, pipeline: H3Pipeline, prompt: Prompt, name: str) -> Record:
    clip, seconds = _clip(plan, pipeline, prompt, name)
    given = pictures(prompt, plan.height, plan.width)
    verdict = judge(measure(clip), prompt.expected, first_frame=given.get("first"), last_frame=given.get("last"))
    exact = plan.path(prompt.task, EXACT, f"{prompt.number}.mp4")
    comparable = name != EXACT and exact.exists()
    return Record(
        right={attribute.name: bool(attribute.right) for attribute in verdict.attributes},
        seconds=seconds if plan.workers == 1 else None,
        against_exact=_distances(clip, read(plan.reader, exact)) if comparable else None,
        velocity_error=_forced_error(plan, pipeline, prompt, name),
    )


def _clip(plan: Plan, pipeline: H3Pipeline, prompt: Prompt, name: str) -> tuple[PlayedClip, float]:
    """A clip without a record was cut off while it was made, or before it was judged: it is made again."""
    path, walked = plan.path(prompt.task, name, f"{prompt.number}.mp4"), name == EXACT and prompt.number < plan.forced
    _discard(path)
    begin = time.perf_counter()
    with recorded() if walked else nullcontext() as trajectory:
        pipeline.generate(_request(plan, prompt, name), path)
    seconds = time.perf_counter() - begin
    if trajectory is not None:
        trajectory.save(_trajectory_path(plan, prompt))
    return read(plan.reader, path), seconds


def _forced_error(plan: Plan, pipeline: H3Pipeline, prompt: Prompt, name: str) -> dict[str, float] | None:
    """The mean over the exact run's evaluations; None where that run was not kept or has another grid."""
    path = _trajectory_path(plan, prompt)
    same_grid = plan.configurations[name].steps == plan.configurations.get(EXACT, Configuration(steps=0)).steps
    if name == EXACT or prompt.number >= plan.forced or not same_grid or not path.exists():
        return None
    scratch = plan.path(prompt.task, name, f"{prompt.number}-forced.mp4")
    _discard(scratch)
    with teacher_forced(Trajectory.load(path)) as errors:
        pipeline.generate(_request(plan, prompt, name), scratch)
    _discard(scratch)
    return {part: mean(row[part] for row in errors) for part in ("video", "audio")}


def _discard(clip: Path) -> None:
    clip.unlink(missing_ok=True)
    clip.with_suffix(".receipt.json").unlink(missing_ok=True)


def _trajectory_path(plan: Plan, prompt: Prompt) -> Path:
    return plan.path(prompt.task, EXACT, f"{prompt.number}-trajectory.safetensors")


def _distances(found: PlayedClip, wanted: PlayedClip) -> dict[str, float]:
    values = (
        psnr_db(found.frames, wanted.frames),
        ssim(found.frames, wanted.frames),
        sound_snr_db(found.waveform, wanted.waveform),
    )
    return dict(zip(DISTANCES, values, strict=True))


def settings_of(plan: Plan, configuration: Configuration) -> dict[str, Any]:
    """The plan's, under the configuration's own. On a GPU Veda runs in BF16, the only dtype of its kernels there, and
    what is left in float32 is the truth: the plain attention and block kernels of the reference."""
    on_gpu = str(plan.settings["device"]).startswith("cuda")
    veda = str(configuration.settings.get("attention_backend", "")).startswith("veda")
    dtype = {"dtype": "bfloat16"} if on_gpu and veda else {}
    found = {**plan.settings, **dtype, **configuration.settings}
    truth = {"attention_backend": "naive", "block_kernels": "torch"} if on_gpu and found["dtype"] == "float32" else {}
    return {
        key: value.replace("{model}", str(plan.model)) if isinstance(value, str) else value
        for key, value in {**truth, **found}.items()
    }


def _pipeline(plan: Plan, configuration: Configuration) -> H3Pipeline:
    return H3Pipeline(plan.model, **settings_of(plan, configuration))


def _request(plan: Plan, prompt: Prompt, name: str) -> VideoRequest:
    paths = {
        kind: _written(picture, plan.path(prompt.task, name, f"{prompt.number}-{kind}.png"))
        for kind, picture in pictures(prompt, plan.height, plan.width).items()
    }
    given: dict[str, Any] = {f"{kind}_frame": path for kind, path in paths.items() if kind != "reference"}
    if "reference" in paths:
        given["references"] = [paths["reference"]]
    return VideoRequest(
        prompt=prompt.caption,
        width=plan.width,
        height=plan.height,
        steps=plan.configurations[name].steps,
        seed=prompt.number,
        **given,
    )


def _written(picture: NDArray[np.uint8], path: Path) -> Path:
    Image.fromarray(picture).save(path)
    return path


def one_thread() -> None:
    """Workers beside each other fill the cores; threads within them would only wait for each other."""
    torch.set_num_threads(1)
