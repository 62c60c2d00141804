"""`vflash quantize`: a model folder whose linear layers are row-scaled FP8, made once, half the bytes to load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vflash.cli import options
from vflash.cli.reporting import byte_progress_observer


def quantize(
    model: Annotated[Path, typer.Option("--model", help="The full-width model folder; it is only read.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The new model folder; it must not exist.")],
    denoiser_layers: Annotated[
        str, typer.Option(help="Layers of every block: attn.qkv, attn.out, ff.in, ff.out; or none.")
    ] = "attn.qkv,attn.out,ff.in,ff.out",
    text_encoder_layers: Annotated[
        str, typer.Option(help="Linear layers of the text encoder: language, vision; or none.")
    ] = "language,vision",
    as_json: options.Json = False,
) -> None:
    """Write a folder to run in the model's place with --linear fp8-weight-only or w8a8. FP8 is an approximation.

    Norms, embeddings, modulation and what the model keeps in float32 are copied as they are.
    """
    from vflash.commands import Commands

    with byte_progress_observer(as_json=as_json) as observer:
        done = Commands.quantise(
            model,
            output,
            denoiser_layers=_names(denoiser_layers),
            text_encoder_layers=_names(text_encoder_layers),
            observer=observer,
        )
    if as_json:
        print(json.dumps(done))
        return
    for folder, component in done["components"].items():
        before, after = component["source_bytes"], component["stored_bytes"]
        print(f"{output / folder}: {len(component['quantised'])} matrices in FP8, {before} -> {after} bytes")


def _names(value: str) -> tuple[str, ...]:
    return () if value == "none" else tuple(name.strip() for name in value.split(","))
