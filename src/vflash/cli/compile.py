"""`vflash compile` and `vflash assets`: a checkpoint laid out for one profile, and the check of such a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vflash.cli import options
from vflash.cli.fields import ADAPTATION, LINEAR, MODEL, READING, Given, takes
from vflash.cli.reporting import byte_progress_observer, progress_observer


@takes(settings=[*(name for name in ADAPTATION if name != "assets"), *MODEL, *LINEAR, *READING])
def compile_assets(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write; it must not exist.")],
    given: Given,
    verify_content_hashes: Annotated[
        bool, typer.Option(help="Hash every file that is read; without it the record says: not measured.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Write packed blocks, finished modulation tables and what else the profile needs: later starts only read."""
    settings = given.settings()

    from vflash.container import Container

    container = Container(settings=settings)
    with progress_observer(as_json=as_json) as observer:
        done = container.compile(output, verify_content_hashes=verify_content_hashes, observer=observer)
    print(json.dumps(done) if as_json else f"{output}: compiled for {done['profile']}")


def assets(
    folder: Annotated[Path, typer.Argument(help="A folder of `vflash compile`.")],
    renew: Annotated[
        bool, typer.Option("--renew", help="After a move or copy: stamp the files anew, once their hashes agree.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Hash every file of compiled assets and compare with their manifest."""
    from vflash.commands import Commands

    with byte_progress_observer(as_json=as_json) as observer:
        done = Commands.assets_verify(folder, renew=renew, observer=observer)
    print(json.dumps(done) if as_json else f"{folder}: {done['files']} files as compiled, receipt {done['receipt']}")
