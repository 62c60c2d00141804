"""`vflash verify`: content hashes of a model folder, taken once and compared on demand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vflash.cli import options
from vflash.cli.reporting import byte_progress_observer

MANIFEST = "vflash-hashes.json"


def verify(
    model: Annotated[Path, typer.Argument(help="A model folder, or any folder of weights.")],
    record: Annotated[bool, typer.Option("--record", help="Take the hashes instead of comparing them.")] = False,
    manifest: Annotated[
        Path | None, typer.Option(help=f"Where the hashes are kept  [default: {MANIFEST} in the folder]")
    ] = None,
    workers: Annotated[int, typer.Option(help="Threads: 1, 2, 4 or 8.")] = 2,
    as_json: options.Json = False,
) -> None:
    """Find damaged, missing and foreign files: sizes and headers cannot see a flipped byte, hashes do."""
    from vflash.commands import Commands

    kept = manifest or model / MANIFEST
    with byte_progress_observer(as_json=as_json) as observer:
        act = Commands.record_hashes if record else Commands.check_hashes
        done = act(model, kept, workers=workers, observer=observer)
    if as_json:
        print(json.dumps(done))
        return
    print(f"{model}: {done['files']} files, {done['byte_count']} bytes {'recorded in' if record else 'equal'} {kept}")
