"""`vflash generate`: one request, one MP4."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vflash.cli import options
from vflash.cli.reporting import print_result, progress_reporter
from vflash.domain.fields import from_mapping
from vflash.domain.model_facts import read_model_facts
from vflash.domain.plan import check_plan, denoiser_folder
from vflash.domain.request import VideoRequest
from vflash.settings import Settings
from vflash_ports.errors import ContractError

REQUEST = "Request"


def generate(
    output: options.Output,
    model: options.Model = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt, used verbatim.", rich_help_panel=REQUEST)] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="UTF-8 file that holds the prompt.", rich_help_panel=REQUEST)
    ] = None,
    first_frame: Annotated[
        Path | None, typer.Option(help="Picture the clip starts from (stretched).", rich_help_panel=REQUEST)
    ] = None,
    last_frame: Annotated[Path | None, typer.Option(help="Picture the clip ends on.", rich_help_panel=REQUEST)] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            help="Picture, video or sound, in order; repeat it. picture:, video:, audio: decide the kind.",
            rich_help_panel=REQUEST,
        ),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Pixels, a multiple of 32.", rich_help_panel=REQUEST)] = None,
    height: Annotated[int | None, typer.Option(help="Pixels, a multiple of 32.", rich_help_panel=REQUEST)] = None,
    duration: Annotated[
        int | None, typer.Option(help="Whole seconds, 5 to 15  [default: 5]", rich_help_panel=REQUEST)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Model evaluations  [default: 50]", rich_help_panel=REQUEST)] = None,
    seed: Annotated[int | None, typer.Option(help="[default: 0]", rich_help_panel=REQUEST)] = None,
    save_latents: Annotated[
        Path | None, typer.Option(help="Keep the finished latents (safetensors).", rich_help_panel=REQUEST)
    ] = None,
    config: options.Config = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    attention_backend: options.AttentionBackend = None,
    linear: options.Linear = None,
    fp8_kernels: options.Fp8Kernels = None,
    block_kernels: options.BlockKernels = None,
    weight_residency: options.WeightResidency = None,
    weight_reading: options.WeightReading = None,
    media_video_input: options.MediaVideoInput = None,
    media_video_threads: options.MediaVideoThreads = None,
    as_json: options.Json = False,
) -> None:
    """Generate a clip from a prompt, and from pictures, videos and sounds if given."""
    settings_table, request_table = options.read_config(config)
    request_table |= options.given(
        prompt=_prompt(prompt, prompt_file),
        first_frame=first_frame,
        last_frame=last_frame,
        references=reference,
        width=width,
        height=height,
        duration_s=duration,
        steps=steps,
        seed=seed,
        save_latents=save_latents,
    )
    settings_table |= options.given(
        model_dir=model,
        device=device,
        dtype=dtype,
        attention_backend=attention_backend,
        linear=linear,
        fp8_kernels=fp8_kernels,
        block_kernels=block_kernels,
        weight_residency=weight_residency,
        weight_reading=weight_reading,
        media_video_input=media_video_input,
        media_video_threads=media_video_threads,
    )
    run(settings_table, request_table, output, as_json=as_json)


def run(settings_table: dict[str, Any], request_table: dict[str, Any], output: Path, *, as_json: bool) -> None:
    """Check everything that plain numbers can decide, then import torch and run."""
    options.require(request_table, "prompt", "--prompt or --prompt-file")
    options.require(settings_table, "model_dir", "--model")
    request = from_mapping(VideoRequest, "the request", request_table)
    settings = from_mapping(Settings, "the settings", {"model_lifetime": "per-request", **settings_table})
    check_inputs(request, output)
    check_plan(request, read_model_facts(settings.model_dir, denoiser=denoiser_folder(request.mode)))

    from vflash.container import Container

    with Container(settings=settings).pipeline() as engine, progress_reporter(as_json=as_json) as report:
        result = engine.generate(request, output, progress=report)
    print_result(result.receipt, result.path, result.elapsed_seconds, as_json=as_json)


def check_inputs(request: VideoRequest, output: Path) -> None:
    for path in request.inputs:
        if not path.is_file():
            raise ContractError(f"input file {path} does not exist")
    if output.exists() or output.is_symlink():
        raise ContractError(f"output {output} exists already; choose another name or remove it")


def _prompt(prompt: str | None, prompt_file: Path | None) -> str | None:
    if prompt_file is None:
        return prompt
    if prompt is not None:
        raise ContractError("give --prompt or --prompt-file, not both")
    try:
        return prompt_file.read_text(encoding="utf-8-sig").strip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(f"--prompt-file {prompt_file} cannot be read: {error}") from error
