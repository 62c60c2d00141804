"""`vflash encode`: prompt and inputs into a sealed conditioning bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vflash.cli import options
from vflash.cli.generate import check_files
from vflash.cli.reporting import progress_reporter
from vflash.domain.fields import from_mapping
from vflash.domain.request import VideoRequest
from vflash.settings import Settings


def encode(
    bundle: Annotated[Path, typer.Option(help="The folder to write; it must not exist.")],
    model: options.Model = None,
    prompt: options.Prompt = None,
    prompt_file: options.PromptFile = None,
    first_frame: options.FirstFrame = None,
    last_frame: options.LastFrame = None,
    reference: options.References = None,
    width: options.Width = None,
    height: options.Height = None,
    duration: options.Duration = None,
    steps: options.Steps = None,
    seed: options.Seed = None,
    config: options.Config = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    weight_reading: options.WeightReading = None,
    as_json: options.Json = False,
) -> None:
    """Encode a request once; `vflash denoise` goes on from the bundle without the text encoder."""
    settings_table, request_table = options.read_config(config)
    request_table |= options.given(
        prompt=options.read_prompt(prompt, prompt_file),
        first_frame=first_frame,
        last_frame=last_frame,
        references=reference,
        width=width,
        height=height,
        duration_s=duration,
        steps=steps,
        seed=seed,
    )
    settings_table |= options.given(model_dir=model, device=device, dtype=dtype, weight_reading=weight_reading)
    options.require(request_table, "prompt", "--prompt")
    options.require(settings_table, "model_dir", "--model")
    request = from_mapping(VideoRequest, "the request", request_table)
    settings = from_mapping(Settings, "the settings", {"model_lifetime": "per-request", **settings_table})
    check_files(request)

    from vflash.container import Container

    with Container(settings=settings).pipeline() as engine, progress_reporter(as_json=as_json) as report:
        result = engine.encode(request, bundle, progress=report)
    if as_json:
        print(json.dumps({"bundle": str(result.path), "bundle_id": result.bundle_id, "stages": result.stages}))
    else:
        print(f"{result.path} {result.bundle_id} ({result.elapsed_seconds:.1f} s)")
