"""`vflash demo`: the whole way on a plain CPU, with a tiny checkpoint and no network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from vflash.cli import options
from vflash.cli.generate import run
from vflash_ports.errors import ContractError


def demo(
    prompt: Annotated[str, typer.Argument(help="The prompt.")] = "A red ball bounces on blue.",
    output: options.Output = Path("demo.mp4"),
    seed: Annotated[int, typer.Option()] = 0,
    as_json: options.Json = False,
) -> None:
    """Run every stage on a tiny model of H3's architecture; random weights, so it shows wiring, not pictures."""
    request = {"prompt": prompt, "width": 192, "height": 128, "steps": 8, "seed": seed}
    settings = {"model_dir": demo_checkpoint(), "device": "cpu", "dtype": "float32"}
    run(settings, request, output, as_json=as_json)


def demo_checkpoint() -> Path:
    """Written once into the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vflash"
    folder = cache / "tiny-h3-random-1"
    if not folder.exists():
        from vflash.container import Container

        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ContractError(
                f"cache folder {folder.parent} cannot be made ({error.strerror}); name another as XDG_CACHE_HOME"
            ) from error
        Container.demo_checkpoint(folder)
    return folder
