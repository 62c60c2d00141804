"""`vflash decode`: kept latents to an MP4, without denoising again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vflash.cli import options
from vflash.cli.fields import DECODER, MEDIA, MODEL, READING, ROOM, Given, takes
from vflash.cli.reporting import print_result, progress_reporter
from vflash.domain.fields import require_file


@takes(
    request=["audio_delivery_profile"],
    settings=[*MODEL, *READING, "model_placement", *DECODER, "fp8_fast_accum", *MEDIA, *ROOM],
)
def decode(
    output: options.Output,
    latents: Annotated[Path, typer.Option(help="Latents written by --save-latents, or kept by a failed decode.")],
    given: Given,
    as_json: options.Json = False,
) -> None:
    """Decode kept latents and deliver them as an MP4."""
    settings = given.settings()
    wanted = {name: value for name, value in given.request_table.items() if name == "audio_delivery_profile"}
    require_file(latents, "latents file")

    from vflash.container import Container

    with Container(settings=settings).pipeline() as engine, progress_reporter(as_json=as_json) as report:
        result = engine.decode(latents, output, progress=report, **wanted)
    print_result(result.receipt, result.path, result.elapsed_seconds, as_json=as_json)
