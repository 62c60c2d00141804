"""`vflash demo`: the whole way on a plain CPU with the trained tiny H3 that comes in the package, and no network."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from vflash.cli import options
from vflash.cli.generate import run
from vflash.cli.judge import print_table
from vflash_ports.errors import ContractError

CANVAS = {"width": 128, "height": 96}
"""What the tiny H3 was trained on most."""
EVALUATIONS = 16
SEED = 7
"""Of the seeds 0 to 9 all draw the default caption as it says (docs/tiny-h3.md)."""


def demo(
    prompt: Annotated[str, typer.Argument(help="A caption of the small world, English or Chinese.")] = (
        "a red ball bounces on blue"
    ),
    output: options.Output = Path("demo.mp4"),
    seed: Annotated[int, typer.Option()] = SEED,
    judge: Annotated[
        bool, typer.Option("--judge", help="Measure the clip and say what of the caption is right.")
    ] = False,
    folder: Annotated[
        bool, typer.Option("--folder", help="Make no clip; print the folder of the model, for --model.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Five seconds with sound from a tiny H3, trained on moving shapes: what it knows is in docs/tiny-h3.md.

    With --json and --judge, the verdict is a second line on stdout.
    """
    # Before torch is imported. Threads of a model this small save little, and on a busy machine they spin for minutes.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from vflash.commands import Commands

    if folder:
        found = str(Commands.demo_checkpoint(cache_folder()))
        print(json.dumps({"folder": found}) if as_json else found)
        return
    objection = Commands.caption_objection(prompt)
    if objection is not None:
        if judge:
            raise ContractError(f"--judge needs a caption of the small world: {objection}")
        _warn(f"outside the small world of the tiny H3 the clip may show anything: {objection}", as_json=as_json)
    model = Commands.demo_checkpoint(cache_folder())
    request = {"prompt": prompt, **CANVAS, "steps": EVALUATIONS, "seed": seed}
    run({"model_dir": model, "device": "cpu", "dtype": "float32"}, request, output, as_json=as_json)
    if judge:
        verdict = Commands.clip_verdict(output, prompt)
        print(json.dumps(verdict, ensure_ascii=False)) if as_json else print_table(verdict)


def cache_folder() -> Path:
    """The user's, by the XDG rule: a relative XDG_CACHE_HOME counts for nothing."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "vflash"


def _warn(text: str, *, as_json: bool) -> None:
    print(json.dumps({"warning": text}, ensure_ascii=False) if as_json else f"vflash: {text}", file=sys.stderr)
