"""`vflash generate`: one request, one MP4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vflash.cli import options
from vflash.cli.fields import REQUEST, SETTINGS, Given, takes
from vflash.cli.reporting import print_result, progress_reporter
from vflash.domain.fields import require_file
from vflash.domain.model_facts import read_model_facts
from vflash.domain.plan import check_plan, denoiser_folder
from vflash.domain.request import VideoRequest
from vflash_ports.errors import ContractError


@takes(request=REQUEST, settings=SETTINGS)
def generate(
    output: options.Output,
    given: Given,
    profile_denoise: options.ProfileDenoise = False,
    as_json: options.Json = False,
) -> None:
    """Generate a clip from a prompt, and from pictures, videos and sounds if given."""
    run(given.settings_table, given.request_table, output, as_json=as_json, profile_denoise=profile_denoise)


def run(
    settings_table: dict[str, Any],
    request_table: dict[str, Any],
    output: Path,
    *,
    as_json: bool,
    profile_denoise: bool = False,
) -> None:
    """Check everything that plain numbers can decide, then import torch and run."""
    given = Given(settings_table=settings_table, request_table=request_table)
    request, settings = given.request(), given.settings()
    check_inputs(request, output)
    facts = read_model_facts(settings.model_dir, denoiser=denoiser_folder(request.mode))
    check_plan(request, facts, settings.running_profile)

    from vflash.container import Container

    with Container(settings=settings).pipeline() as engine, progress_reporter(as_json=as_json) as report:
        result = engine.generate(request, output, progress=report, profile_denoise=profile_denoise)
    print_result(result.receipt, result.path, result.elapsed_seconds, as_json=as_json)


def check_inputs(request: VideoRequest, output: Path) -> None:
    check_files(request)
    if not output.name:
        raise ContractError(f"output must name a file, got {str(output)!r}")
    if output.exists() or output.is_symlink():
        raise ContractError(f"output {output} exists already; choose another name or remove it")


def check_files(request: VideoRequest) -> None:
    for path in request.inputs:
        require_file(path, "input file")
