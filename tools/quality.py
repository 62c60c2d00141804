"""The gate: a fixed prompt set through the product, one configuration after another, judged on the delivered MP4s.

    PYTHONPATH=tools python tools/quality.py --model tiny-h3 --device cpu --output quality.json

Writes JSON, and beside it the same as Markdown tables: the judge's share per attribute with its 95 % interval,
teacher-forced velocity errors of video and audio rows apart, PSNR, SSIM and sound SNR against the exact run (16
evaluations, float32), and seconds. Clips and records are kept under --work, and a run goes on from what is there.
`--workers` share out the prompts; only a run of one worker tells seconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quality_configurations import CONFIGURATIONS, EXACT, choose
from quality_reading import Reader
from quality_report import summary, tables
from quality_run import Plan, claim_work, failures, one_thread, records, run_share, settings_of

_REPORT_EVERY_S = 5.0


def run(plan: Plan, written: Callable[[dict[str, Any]], None] = lambda results: None) -> dict[str, Any]:
    """Mode -> configuration -> what was found, of all clips that there are; `written` gets it again and again."""
    claim_work(plan)
    if plan.workers == 1:
        run_share(plan, 0)
        return results(plan)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_work, args=(plan, worker)) for worker in range(plan.workers)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        time.sleep(_REPORT_EVERY_S)
        written(results(plan))
    if any(process.exitcode for process in processes):
        raise RuntimeError("a worker of the gate failed; its traceback is above")
    return results(plan)


def results(plan: Plan) -> dict[str, Any]:
    """Also under "settings", what each configuration ran with."""
    found: dict[str, Any] = {"settings": {n: settings_of(plan, c) for n, c in plan.configurations.items()}}
    for task, name in plan.cells():
        if kept := records(plan, task, name):
            found.setdefault(task.value, {})[name] = summary(kept)
        if failed := failures(plan, task, name):
            found.setdefault("failed", {})[f"{task}/{name}"] = failed[0]
    return found


def _work(plan: Plan, worker: int) -> None:
    one_thread()
    run_share(plan, worker)


def main() -> None:
    args = _parsed()
    width, height = map(int, args.canvas.split("x"))
    plan = Plan(
        model=args.model,
        work=args.work,
        settings={"device": args.device, "dtype": args.dtype, **dict(text.split("=", 1) for text in args.setting)},
        configurations=choose(args.configurations, args.configuration),
        prompts=args.prompts,
        forced=args.forced,
        height=height,
        width=width,
        reader=args.reader,
        workers=args.workers,
        until=None if args.deadline_s is None else time.time() + args.deadline_s,
    )
    begin = time.perf_counter()
    found = run(plan, lambda results: _write(args.output, results))
    _write(args.output, found)
    print(f"{tables(_modes(found))}\n{time.perf_counter() - begin:.0f} s")
    for cell, told in found.get("failed", {}).items():
        print(f"failed: {cell}\n{told}")
    _check_bounds(_modes(found), dict(map(_bound, args.require)))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("quality-clips"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32", help="where a configuration names none")
    parser.add_argument("--setting", action="append", default=[], help="NAME=VALUE, a field of Settings for all")
    names = ", ".join(CONFIGURATIONS)
    parser.add_argument("--configurations", default=EXACT, help=f"NAME[@mode+mode] with commas; all, {names}")
    parser.add_argument("--configuration", action="append", default=[], help='NAME={"steps": 16, "settings": {...}}')
    parser.add_argument("--prompts", type=int, default=64, help="of each mode")
    parser.add_argument("--forced", type=int, default=8, help="prompts a mode for the velocity errors")
    parser.add_argument("--canvas", default="128x96")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--deadline-s", type=float, help="begin no clip after so many seconds")
    parser.add_argument("--reader", type=Reader, choices=list(Reader), default=Reader.PYAV)
    parser.add_argument(
        "--require", action="append", default=[], help="NAME=SHARE: exit 1 if less is right in any mode"
    )
    return parser.parse_args()


def _write(output: Path, found: Mapping[str, Any]) -> None:
    output.write_text(json.dumps(found, indent=1) + "\n")
    output.with_suffix(".md").write_text(tables(_modes(found)))


def _modes(found: Mapping[str, Any]) -> dict[str, Any]:
    return {task: by_name for task, by_name in found.items() if task not in ("failed", "settings")}


def _bound(text: str) -> tuple[str, float]:
    name, _, share = text.partition("=")
    return name, float(share)


def _check_bounds(found: Mapping[str, Any], bounds: Mapping[str, float]) -> None:
    """A configuration that was bounded but not measured is below its bound."""
    below = [
        f"{task} {name}: {rows[name]['judged']['all']['share']:.1%} < {bound:.1%}"
        for name, bound in bounds.items()
        for task, rows in found.items()
        if name in rows and rows[name]["judged"]["all"]["share"] < bound
    ]
    below += [f"{name} was not measured" for name in bounds if not any(name in rows for rows in found.values())]
    if below:
        raise SystemExit("; ".join(below))


if __name__ == "__main__":
    main()
