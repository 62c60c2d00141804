"""`vflash judge`: does a clip of the small world show and sound like its caption?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vflash.cli import options


def judge(
    clip: Annotated[Path, typer.Argument(help="The MP4 to judge; nothing else is read.")],
    expect: Annotated[
        str, typer.Option(help="The caption, in the world's grammar (docs/tiny-h3.md), either language.")
    ],
    first_frame: Annotated[Path | None, typer.Option(help="Picture the clip should start with.")] = None,
    last_frame: Annotated[Path | None, typer.Option(help="Picture the clip should end with.")] = None,
    require: Annotated[
        float, typer.Option(help="Exit 1 if a smaller share of the attributes is right.", min=0.0, max=1.0)
    ] = 0.0,
    as_json: options.JsonReport = False,
) -> None:
    """Measure colour, shape, motion, pitch, rhythm, pan and sync by classical means, each against the caption."""
    from vflash.commands import Commands

    found = Commands.clip_verdict(clip, expect, first_frame=first_frame, last_frame=last_frame)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        print_table(found)
    if found["score"] < require:
        raise typer.Exit(1)


def print_table(found: dict[str, Any]) -> None:
    for name, row in found["attributes"].items():
        mark = "right" if row["right"] else "WRONG"
        print(f"{mark}  {name:14} expected {row['expected']}, measured {row['measured']}")
    print(f"{found['score']:.0%} of {len(found['attributes'])} attributes")
