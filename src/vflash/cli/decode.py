"""`vflash decode`: kept latents to an MP4, without denoising again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vflash.cli import options
from vflash.cli.reporting import print_result, progress_reporter
from vflash.domain.fields import from_mapping
from vflash.settings import Settings
from vflash_ports.errors import ContractError


def decode(
    output: options.Output,
    latents: Annotated[Path, typer.Option(help="Latents written by --save-latents, or kept by a failed decode.")],
    model: options.Model = None,
    config: options.Config = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    video_decoder: options.VideoDecoder = None,
    audio_delivery: options.AudioDelivery = None,
    vae_tiles_at_once: options.VaeTilesAtOnce = None,
    media_video_input: options.MediaVideoInput = None,
    media_video_threads: options.MediaVideoThreads = None,
    media_video_encoder: options.MediaVideoEncoder = None,
    media_preset: options.MediaPreset = None,
    media_crf: options.MediaCrf = None,
    as_json: options.Json = False,
) -> None:
    """Decode kept latents and deliver them as an MP4."""
    settings_table, _ = options.read_config(config)
    settings_table |= options.given(
        model_dir=model,
        device=device,
        dtype=dtype,
        video_decoder=video_decoder,
        vae_tiles_at_once=vae_tiles_at_once,
        media_video_input=media_video_input,
        media_video_threads=media_video_threads,
        media_video_encoder=media_video_encoder,
        media_preset=media_preset,
        media_crf=media_crf,
    )
    options.require(settings_table, "model_dir", "--model")
    settings = from_mapping(Settings, "the settings", {"model_lifetime": "per-request", **settings_table})
    if not latents.is_file():
        raise ContractError(f"latents file {latents} does not exist")

    from vflash.container import Container

    with Container(settings=settings).pipeline() as engine, progress_reporter(as_json=as_json) as report:
        result = engine.decode(latents, output, progress=report, **options.given(audio_delivery_profile=audio_delivery))
    print_result(result.receipt, result.path, result.elapsed_seconds, as_json=as_json)
