"""The gate: a fixed prompt set through the product, one configuration after another, judged on the delivered MP4s.

    PYTHONPATH=tools python tools/quality.py --model tiny-h3 --device cpu --dtype float32 --output quality.json

Writes JSON and, beside it, the same as a Markdown table: the judge's share per attribute with its 95 % interval,
teacher-forced velocity errors of video and audio rows apart, PSNR, SSIM and sound SNR against the exact run of the same
number of evaluations, and seconds. Clips are kept under --work, and a run goes on from what is there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from attrs import field, frozen
from PIL import Image

from calibrate_judge import wilson
from quality_measure import psnr_db, recorded, sound_snr_db, ssim, teacher_forced
from tiny_h3.prompts import Prompt, pictures, prompt_set
from tiny_h3.tasks import Task
from vflash.pipeline import H3Pipeline, VideoRequest
from vflash_adapters.judge.reading import PlayedClip, read_clip
from vflash_adapters.judge.verdict import judge, measure

EXACT = "exact-16"
TURBO_FILE = "turbo-lora.safetensors"


@frozen(kw_only=True)
class Configuration:
    """`settings` are fields of `Settings`; `{model}` in a value is the checkpoint folder."""

    steps: int
    settings: Mapping[str, Any] = field(factory=dict)


CONFIGURATIONS: dict[str, Configuration] = {
    EXACT: Configuration(steps=16),
    "exact-50": Configuration(steps=50),
    "exact-8": Configuration(steps=8),
    "exact-4": Configuration(steps=4),
    "turbo-4": Configuration(steps=4, settings={"adapter": f"{{model}}/{TURBO_FILE}"}),
    "bfloat16-16": Configuration(steps=16, settings={"dtype": "bfloat16"}),
    "fp8-weight-only-16": Configuration(steps=16, settings={"linear": "fp8-weight-only", "dtype": "bfloat16"}),
    "w8a8-16": Configuration(steps=16, settings={"linear": "w8a8", "dtype": "bfloat16"}),
}


@frozen(kw_only=True)
class Plan:
    model: Path
    work: Path
    settings: Mapping[str, Any]
    tasks: tuple[Task, ...]
    configurations: Mapping[str, Configuration]
    prompts: int
    forced: int
    height: int
    width: int


@frozen(kw_only=True, eq=False)
class Tally:
    """One configuration in one mode."""

    right: Counter[str] = field(factory=Counter)
    asked: Counter[str] = field(factory=Counter)
    distances: list[dict[str, float]] = field(factory=list)
    velocity_errors: list[dict[str, float]] = field(factory=list)
    seconds: list[float] = field(factory=list)

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = {"judged": {name: self._share(name) for name in ("all", *sorted(self.asked))}}
        for key, rows in (("against_exact", self.distances), ("velocity_error", self.velocity_errors)):
            if rows:
                found[key] = {name: mean(row[name] for row in rows) for name in rows[0]}
        if self.seconds:
            found["seconds_a_clip"] = mean(self.seconds)
        return found

    def _share(self, name: str) -> dict[str, float]:
        right = sum(self.right.values()) if name == "all" else self.right[name]
        asked = sum(self.asked.values()) if name == "all" else self.asked[name]
        low, high = wilson(right, asked)
        return {"right": right, "asked": asked, "share": right / asked, "low95": low, "high95": high}


def run(plan: Plan) -> dict[str, Any]:
    """Every mode and configuration; the exact one first, since the others are compared with it."""
    names = sorted(plan.configurations, key=lambda name: name != EXACT)
    return {task: {name: _tally(plan, task, name).report() for name in names} for task in plan.tasks}


def _tally(plan: Plan, task: Task, name: str) -> Tally:
    tally, configuration = Tally(), plan.configurations[name]
    with _pipeline(plan, configuration) as pipeline:
        for prompt in prompt_set(task, plan.prompts):
            clip = _clip(plan, pipeline, prompt, name, tally)
            given = pictures(prompt, plan.height, plan.width)
            verdict = judge(
                measure(clip), prompt.expected, first_frame=given.get("first"), last_frame=given.get("last")
            )
            for attribute in verdict.attributes:
                tally.asked[attribute.name] += 1
                tally.right[attribute.name] += attribute.right
            exact = _path(plan, prompt, EXACT)
            if name != EXACT and exact.exists():
                tally.distances.append(_distances(clip, read_clip(exact)))
        if name != EXACT and EXACT in plan.configurations and _comparable(plan, configuration):
            tally.velocity_errors.extend(_forced_errors(plan, pipeline, task))
    return tally


def _comparable(plan: Plan, configuration: Configuration) -> bool:
    """Velocities can be compared state by state only on the same grid."""
    return configuration.steps == plan.configurations[EXACT].steps


def _clip(plan: Plan, pipeline: H3Pipeline, prompt: Prompt, name: str, tally: Tally) -> PlayedClip:
    path = _path(plan, prompt, name)
    if not path.exists():
        begin = time.perf_counter()
        pipeline.generate(_request(plan, prompt, plan.configurations[name].steps), path)
        tally.seconds.append(time.perf_counter() - begin)
    return read_clip(path)


def _forced_errors(plan: Plan, pipeline: H3Pipeline, task: Task) -> Iterator[dict[str, float]]:
    """One row a prompt: the mean over its evaluations."""
    exact = plan.configurations[EXACT]
    with _pipeline(plan, exact) as teacher:
        for prompt in prompt_set(task, plan.prompts)[: plan.forced]:
            request = _request(plan, prompt, exact.steps)
            with recorded() as trajectory:
                teacher.generate(request, _scratch(plan))
            with teacher_forced(trajectory) as errors:
                pipeline.generate(request, _scratch(plan))
            yield {part: mean(row[part] for row in errors) for part in ("video", "audio")}


def _distances(found: PlayedClip, wanted: PlayedClip) -> dict[str, float]:
    return {
        "psnr_db": psnr_db(found.frames, wanted.frames),
        "ssim": ssim(found.frames, wanted.frames),
        "sound_snr_db": sound_snr_db(found.waveform, wanted.waveform),
    }


def _pipeline(plan: Plan, configuration: Configuration) -> H3Pipeline:
    named = {
        key: value.replace("{model}", str(plan.model)) if isinstance(value, str) else value
        for key, value in configuration.settings.items()
    }
    return H3Pipeline(plan.model, **{**plan.settings, **named})


def _request(plan: Plan, prompt: Prompt, steps: int) -> VideoRequest:
    folder = plan.work / prompt.task / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for name, picture in pictures(prompt, plan.height, plan.width).items():
        paths[name] = folder / f"{prompt.number}-{name}.png"
        Image.fromarray(picture).save(paths[name])
    given: dict[str, Any] = {f"{name}_frame": path for name, path in paths.items() if name != "reference"}
    if "reference" in paths:
        given["references"] = [paths["reference"]]
    return VideoRequest(
        prompt=prompt.caption, width=plan.width, height=plan.height, steps=steps, seed=prompt.number, **given
    )


def _path(plan: Plan, prompt: Prompt, name: str) -> Path:
    path = plan.work / prompt.task / name / f"{prompt.number}.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _scratch(plan: Plan) -> Path:
    """A clip that only its velocities are wanted of."""
    for leftover in plan.work.glob("scratch.*"):
        leftover.unlink()
    return plan.work / "scratch.mp4"


def table(results: Mapping[str, Any]) -> str:
    """The same as Markdown, a row for each mode and configuration."""
    lines = [
        "| mode | configuration | attributes right | velocity error video / audio | PSNR, SSIM, sound SNR | s a clip |",
        "|---|---|---|---|---|---|",
    ]
    for task, by_name in results.items():
        for name, found in by_name.items():
            overall = found["judged"]["all"]
            share = f"{overall['share']:.1%} ({overall['low95']:.1%} to {overall['high95']:.1%})"
            error, near = found.get("velocity_error"), found.get("against_exact")
            cells = (
                f"{error['video']:.4f} / {error['audio']:.4f}" if error else "",
                f"{near['psnr_db']:.1f} dB, {near['ssim']:.3f}, {near['sound_snr_db']:.1f} dB" if near else "",
                f"{found['seconds_a_clip']:.1f}" if "seconds_a_clip" in found else "",
            )
            lines.append(f"| {task} | {name} | {share} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("quality-clips"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--modes", default=",".join(Task))
    parser.add_argument("--configurations", default=EXACT, help=f"of {', '.join(CONFIGURATIONS)}, with commas")
    parser.add_argument("--configuration", action="append", default=[], help='NAME={"steps": 16, "settings": {...}}')
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--forced", type=int, default=8, help="prompts a mode for the velocity errors")
    parser.add_argument("--canvas", default="128x96")
    parser.add_argument("--require", type=float, default=0.0, help=f"exit 1 if {EXACT} is right less often in any mode")
    args = parser.parse_args()
    width, height = map(int, args.canvas.split("x"))
    chosen = {name: CONFIGURATIONS[name] for name in args.configurations.split(",") if name}
    chosen |= dict(map(_parsed, args.configuration))
    plan = Plan(
        model=args.model,
        work=args.work,
        settings={"device": args.device, "dtype": args.dtype},
        tasks=tuple(map(Task, args.modes.split(","))),
        configurations=chosen,
        prompts=args.prompts,
        forced=args.forced,
        height=height,
        width=width,
    )
    results = run(plan)
    args.output.write_text(json.dumps(results, indent=1) + "\n")
    args.output.with_suffix(".md").write_text(table(results))
    print(table(results))
    if any(rows[EXACT]["judged"]["all"]["share"] < args.require for rows in results.values() if EXACT in rows):
        raise SystemExit(1)


def _parsed(text: str) -> tuple[str, Configuration]:
    name, _, body = text.partition("=")
    return name, Configuration(**json.loads(body))


if __name__ == "__main__":
    main()
