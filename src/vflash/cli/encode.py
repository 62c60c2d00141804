"""`vflash encode`: prompt and inputs into a sealed conditioning bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vflash.cli import options
from vflash.cli.fields import ADAPTATION, LINEAR, MEMORY, MODEL, READING, REQUEST, Given, takes
from vflash.cli.generate import check_files
from vflash.cli.reporting import progress_reporter

DELIVERED = ("save_latents", "audio_delivery_profile", "keyframe_delivery_profile")


@takes(
    request=[name for name in REQUEST if name not in DELIVERED],
    settings=[*ADAPTATION, *MODEL, *LINEAR, *MEMORY, *READING],
)
def encode(
    bundle: Annotated[Path, typer.Option(help="The folder to write; it must not exist.")],
    given: Given,
    as_json: options.Json = False,
) -> None:
    """Encode a request once; `vflash denoise` goes on from the bundle without the text encoder."""
    request, settings = given.request(), given.settings()
    check_files(request)

    from vflash.container import Container

    with Container(settings=settings).pipeline() as engine, progress_reporter(as_json=as_json) as report:
        result = engine.encode(request, bundle, progress=report)
    if as_json:
        print(json.dumps({"bundle": str(result.path), "bundle_id": result.bundle_id, "stages": result.stages}))
    else:
        print(f"{result.path} {result.bundle_id} ({result.elapsed_seconds:.1f} s)")
