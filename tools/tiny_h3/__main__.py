"""Train the tiny H3, or a part of it, export it, and pack it for shipping.

PYTHONPATH=src:ports:adapters:tools python -m tiny_h3 all --folder RUN --seconds 530
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import fields

from tiny_h3.asset import pack_checkpoint, pack_run
from tiny_h3.audio_vae import train_audio_vae
from tiny_h3.export import export_checkpoint, size_of
from tiny_h3.jobs import audio_vae_job, video_vae_job
from tiny_h3.plan import CANVASES, RunPlan
from tiny_h3.run import follow_run, judge_run, run
from tiny_h3.stage import Budget
from tiny_h3.video_vae import train_video_vae

_TRAINING: dict[str, Callable[[RunPlan], None]] = {
    "all": run,
    "follow": follow_run,
    "judge": judge_run,
    "video-vae": lambda plan: train_video_vae(video_vae_job(plan, Budget(seconds=plan.seconds, steps=plan.steps))),
    "audio-vae": lambda plan: train_audio_vae(audio_vae_job(plan, Budget(seconds=plan.seconds, steps=plan.steps))),
}


def main(words: Sequence[str] | None = None) -> None:
    parser = new_parser()
    args = parser.parse_args(words)
    if args.output is None and args.stage in ("export", "pack"):
        parser.error(f"{args.stage} needs --output")
    if args.stage == "pack" and args.checkpoint is not None:
        print(pack_checkpoint(args.checkpoint, args.output))
        return
    if args.folder is None:
        parser.error(f"{args.stage} needs --folder")
    plan = plan_of(args)
    plan.folder.mkdir(parents=True, exist_ok=True)
    if args.stage == "export":
        export_checkpoint(plan.folder, args.output, plan.sizes)
        print(size_of(args.output))
    elif args.stage == "pack":
        print(pack_run(plan.folder, args.output, plan.sizes))
    else:
        _TRAINING[args.stage](plan)


def new_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tiny_h3", description=__doc__)
    parser.add_argument("stage", choices=(*_TRAINING, "export", "pack"))
    parser.add_argument("--folder", type=Path, help="states, logs and sheets; a run goes on from it")
    parser.add_argument("--checkpoint", type=Path, help="`pack` this exported folder instead of a run's states")
    parser.add_argument("--output", type=Path, help="the new folder that `export` or `pack` writes")
    parser.add_argument("--seconds", type=float, default=520.0)
    parser.add_argument("--steps", type=int, default=None, help="at most this many steps a stage")
    parser.add_argument("--toy", action="store_true", help="toy dimensions, for a smoke test")
    parser.add_argument("--clips", type=int, default=fields(RunPlan).clips.default)
    parser.add_argument("--batch", type=int, default=fields(RunPlan).batch.default)
    parser.add_argument("--prompts", type=int, default=fields(RunPlan).prompts.default)
    parser.add_argument("--canvas", type=canvas, action="append", help="as 128x96; once for each, the judged one first")
    parser.add_argument("--no-compile", action="store_true")
    return parser


def plan_of(args: argparse.Namespace) -> RunPlan:
    return RunPlan(
        folder=args.folder,
        seconds=args.seconds,
        steps=args.steps,
        toy=args.toy,
        clips=args.clips,
        batch=args.batch,
        prompts=args.prompts,
        compiled=not args.no_compile,
        canvases=tuple(args.canvas or CANVASES),
    )


def canvas(word: str) -> tuple[int, int]:
    """WIDTHxHEIGHT -> (height, width)."""
    width, height = (int(number) for number in word.split("x"))
    if width < 32 or height < 32 or width % 32 or height % 32:
        raise argparse.ArgumentTypeError(f"{word}: both edges must be multiples of 32, at least 32")
    return height, width


if __name__ == "__main__":
    main()
