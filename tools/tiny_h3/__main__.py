"""Train the tiny H3, or a part of it, export it, and pack it for shipping.

PYTHONPATH=src:ports:adapters:tools python -m tiny_h3 all --folder RUN --seconds 530
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tiny_h3.asset import pack_checkpoint, pack_run
from tiny_h3.audio_vae import AudioVaeJob, train_audio_vae
from tiny_h3.export import export_checkpoint, size_of
from tiny_h3.run import RunPlan, follow_run, judge_run, run
from tiny_h3.sizes import FULL, TOY
from tiny_h3.stage import Budget
from tiny_h3.video_vae import VideoVaeJob, train_video_vae


def main() -> None:
    parser = argparse.ArgumentParser(prog="tiny_h3", description=__doc__)
    parser.add_argument("stage", choices=("all", "follow", "video-vae", "audio-vae", "judge", "export", "pack"))
    parser.add_argument("--folder", type=Path, help="states, logs and sheets; a run goes on from it")
    parser.add_argument("--checkpoint", type=Path, help="`pack` this exported folder instead of a run's states")
    parser.add_argument("--output", type=Path, help="the new folder that `export` or `pack` writes")
    parser.add_argument("--seconds", type=float, default=520.0)
    parser.add_argument("--steps", type=int, default=None, help="at most this many steps a stage")
    parser.add_argument("--toy", action="store_true", help="toy dimensions, for a smoke test")
    parser.add_argument("--clips", type=int, default=48_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    sizes, budget = TOY if args.toy else FULL, Budget(seconds=args.seconds, steps=args.steps)
    if args.output is None and args.stage in ("export", "pack"):
        parser.error(f"{args.stage} needs --output")
    if args.stage == "pack" and args.checkpoint is not None:
        print(pack_checkpoint(args.checkpoint, args.output))
        return
    if args.folder is None:
        parser.error(f"{args.stage} needs --folder")
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.stage == "video-vae":
        train_video_vae(VideoVaeJob(sizes=sizes, folder=args.folder, budget=budget))
    elif args.stage == "audio-vae":
        train_audio_vae(AudioVaeJob(sizes=sizes, folder=args.folder, budget=budget))
    elif args.stage == "export":
        export_checkpoint(args.folder, args.output, sizes)
        print(size_of(args.output))
    elif args.stage == "pack":
        print(pack_run(args.folder, args.output, sizes))
    else:
        plan = RunPlan(
            folder=args.folder,
            seconds=args.seconds,
            steps=args.steps,
            toy=args.toy,
            clips=args.clips,
            batch=args.batch,
            prompts=args.prompts,
            compiled=not args.no_compile,
        )
        {"all": run, "follow": follow_run, "judge": judge_run}[args.stage](plan)


if __name__ == "__main__":
    main()
