"""`vflash denoise`: a conditioning bundle to latents, with nothing loaded but the denoiser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vflash.cli import options
from vflash.cli.fields import ADAPTATION, BLOCKS, LINEAR, MEMORY, MODEL, READING, Given, takes
from vflash.cli.reporting import progress_reporter


@takes(settings=[*ADAPTATION, *MODEL, *BLOCKS, *LINEAR, *MEMORY, *READING])
def denoise(
    bundle: Annotated[Path, typer.Option(help="A folder written by vflash encode.")],
    output_latents: Annotated[Path, typer.Option(help="The latents to write; the file must not exist.")],
    given: Given,
    profile_denoise: options.ProfileDenoise = False,
    as_json: options.Json = False,
) -> None:
    """Denoise an encoded request; `vflash decode` makes a clip of the latents."""
    settings = given.settings()

    from vflash.container import Container

    with Container(settings=settings).denoise_session() as session, progress_reporter(as_json=as_json) as report:
        result = session.generate(bundle, output_latents, progress_callback=report, profile_denoise=profile_denoise)
    times = result["session"]
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        seconds, loading = times["request_wall_seconds"], times["initialization_charged_seconds"]
        print(f"{output_latents} ({seconds:.1f} s, and {loading:.1f} s of loading)")
