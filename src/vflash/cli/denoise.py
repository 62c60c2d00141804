"""`vflash denoise`: a conditioning bundle to latents, with nothing loaded but the denoiser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vflash.cli import options
from vflash.cli.reporting import progress_reporter
from vflash.domain.fields import from_mapping
from vflash.settings import Settings


def denoise(
    bundle: Annotated[Path, typer.Option(help="A folder written by vflash encode.")],
    output_latents: Annotated[Path, typer.Option(help="The latents to write; the file must not exist.")],
    model: options.Model = None,
    config: options.Config = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    attention_backend: options.AttentionBackend = None,
    linear: options.Linear = None,
    block_kernels: options.BlockKernels = None,
    weight_residency: options.WeightResidency = None,
    weight_reading: options.WeightReading = None,
    device_memory_gib: options.DeviceMemory = None,
    host_memory_gib: options.HostMemory = None,
    profile_denoise: options.ProfileDenoise = False,
    as_json: options.Json = False,
) -> None:
    """Denoise an encoded request; `vflash decode` makes a clip of the latents."""
    settings_table, _ = options.read_config(config)
    settings_table |= options.given(
        model_dir=model,
        device=device,
        dtype=dtype,
        attention_backend=attention_backend,
        linear=linear,
        block_kernels=block_kernels,
        weight_residency=weight_residency,
        weight_reading=weight_reading,
        device_memory_gib=device_memory_gib,
        host_memory_gib=host_memory_gib,
    )
    options.require(settings_table, "model_dir", "--model")
    settings = from_mapping(Settings, "the settings", {"model_lifetime": "per-request", **settings_table})

    from vflash.container import Container

    with Container(settings=settings).denoise_session() as session, progress_reporter(as_json=as_json) as report:
        result = session.generate(bundle, output_latents, progress_callback=report, profile_denoise=profile_denoise)
    times = result["session"]
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        seconds, loading = times["request_wall_seconds"], times["initialization_charged_seconds"]
        print(f"{output_latents} ({seconds:.1f} s, and {loading:.1f} s of loading)")
