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


def generate(
    output: options.Output,
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
    video_shift: options.VideoShift = None,
    audio_shift: options.AudioShift = None,
    seed: options.Seed = None,
    save_latents: Annotated[
        Path | None, typer.Option(help="Keep the finished latents (safetensors).", rich_help_panel=options.REQUEST)
    ] = None,
    profile: options.Profile = None,
    adapter: options.Adapter = None,
    adapter_alpha: options.AdapterAlpha = None,
    adapter_strength: options.AdapterStrength = None,
    adapter_qkv_order: options.AdapterQkvOrder = None,
    audio_delivery: options.AudioDelivery = None,
    keyframe_delivery: options.KeyframeDelivery = None,
    assets: options.Assets = None,
    config: options.Config = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    attention_backend: options.AttentionBackend = None,
    veda_predictor: options.VedaPredictor = None,
    veda_dense_edge_layers: options.VedaDenseEdgeLayers = None,
    veda_dense_backend: options.VedaDenseBackend = None,
    veda_dense_steps: options.VedaDenseSteps = None,
    veda_kernels: options.VedaKernels = None,
    veda_target_budget: options.VedaTargetBudget = None,
    veda_reference_budget: options.VedaReferenceBudget = None,
    linear: options.Linear = None,
    fp8_kernels: options.Fp8Kernels = None,
    block_kernels: options.BlockKernels = None,
    weight_residency: options.WeightResidency = None,
    weight_reading: options.WeightReading = None,
    video_decoder: options.VideoDecoder = None,
    model_placement: options.ModelPlacement = None,
    model_lifetime: options.ModelLifetime = None,
    device_memory_gib: options.DeviceMemory = None,
    host_memory_gib: options.HostMemory = None,
    weight_read_workers: options.WeightReadWorkers = None,
    weight_sidecar: options.WeightSidecar = None,
    sidecar_merge: options.SidecarMerge = None,
    qkv_order: options.QkvOrder = None,
    vae_tiles_at_once: options.VaeTilesAtOnce = None,
    media_video_input: options.MediaVideoInput = None,
    media_video_threads: options.MediaVideoThreads = None,
    log: options.Log = None,
    media_video_encoder: options.MediaVideoEncoder = None,
    media_preset: options.MediaPreset = None,
    media_crf: options.MediaCrf = None,
    profile_denoise: options.ProfileDenoise = False,
    as_json: options.Json = False,
) -> None:
    """Generate a clip from a prompt, and from pictures, videos and sounds if given."""
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
        video_shift=video_shift,
        audio_shift=audio_shift,
        seed=seed,
        save_latents=save_latents,
        audio_delivery_profile=audio_delivery,
        keyframe_delivery_profile=keyframe_delivery,
    )
    settings_table |= options.given(
        log=log,
        model_dir=model,
        profile=profile,
        adapter=adapter,
        adapter_alpha=adapter_alpha,
        adapter_strength=adapter_strength,
        adapter_qkv_order=adapter_qkv_order,
        assets=assets,
        device=device,
        dtype=dtype,
        attention_backend=attention_backend,
        veda_predictor=veda_predictor,
        veda_dense_edge_layers=veda_dense_edge_layers,
        veda_dense_backend=veda_dense_backend,
        veda_dense_steps=veda_dense_steps,
        veda_kernels=veda_kernels,
        veda_target_budget=veda_target_budget,
        veda_reference_budget=veda_reference_budget,
        linear=linear,
        fp8_kernels=fp8_kernels,
        block_kernels=block_kernels,
        weight_residency=weight_residency,
        weight_reading=weight_reading,
        video_decoder=video_decoder,
        model_placement=model_placement,
        model_lifetime=model_lifetime,
        device_memory_gib=device_memory_gib,
        host_memory_gib=host_memory_gib,
        weight_read_workers=weight_read_workers,
        weight_sidecar=weight_sidecar,
        sidecar_merge=sidecar_merge,
        qkv_order=qkv_order,
        vae_tiles_at_once=vae_tiles_at_once,
        media_video_input=media_video_input,
        media_video_threads=media_video_threads,
        media_video_encoder=media_video_encoder,
        media_preset=media_preset,
        media_crf=media_crf,
    )
    run(settings_table, request_table, output, as_json=as_json, profile_denoise=profile_denoise)


def run(
    settings_table: dict[str, Any],
    request_table: dict[str, Any],
    output: Path,
    *,
    as_json: bool,
    profile_denoise: bool = False,
) -> None:
    """Check everything that plain numbers can decide, then import torch and run."""
    options.require(request_table, "prompt", "--prompt or --prompt-file")
    options.require(settings_table, "model_dir", "--model")
    request = from_mapping(VideoRequest, "the request", request_table)
    settings = from_mapping(Settings, "the settings", {"model_lifetime": "per-request", **settings_table})
    check_inputs(request, output)
    facts = read_model_facts(settings.model_dir, denoiser=denoiser_folder(request.mode))
    check_plan(request, facts, settings.running_profile)

    from vflash.container import Container

    with Container(settings=settings).pipeline() as engine, progress_reporter(as_json=as_json) as report:
        result = engine.generate(request, output, progress=report, profile_denoise=profile_denoise)
    print_result(result.receipt, result.path, result.elapsed_seconds, as_json=as_json)


def check_inputs(request: VideoRequest, output: Path) -> None:
    check_files(request)
    if output.exists() or output.is_symlink():
        raise ContractError(f"output {output} exists already; choose another name or remove it")


def check_files(request: VideoRequest) -> None:
    for path in request.inputs:
        if not path.is_file():
            raise ContractError(f"input file {path} does not exist")
