"""`vflash plan`: what a request needs and whether it fits, before anything loads."""

from __future__ import annotations

import json
from typing import Any

import typer

from vflash.cli import options
from vflash.cli.generate import check_files
from vflash.domain.fields import from_mapping
from vflash.domain.request import VideoRequest
from vflash.settings import Settings

STAND_IN_PROMPT = "A prompt of about fifty tokens, which is what most are; its length hardly moves the plan."


def plan(
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
    profile: options.Profile = None,
    adapter: options.Adapter = None,
    config: options.Config = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    linear: options.Linear = None,
    weight_residency: options.WeightResidency = None,
    model_placement: options.ModelPlacement = None,
    model_lifetime: options.ModelLifetime = None,
    vae_tiles_at_once: options.VaeTilesAtOnce = None,
    device_memory_gib: options.DeviceMemory = None,
    host_memory_gib: options.HostMemory = None,
    as_json: options.Json = False,
) -> None:
    """Device, pinned and host memory and bytes to read, for every weight residency and linear; exit 1 if it won't fit.

    The prompt may be left out: a text of usual length stands in for it.
    """
    settings_table, request_table = options.read_config(config)
    request_table = {"prompt": STAND_IN_PROMPT, **request_table} | options.given(
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
    )
    settings_table |= options.given(
        model_dir=model,
        profile=profile,
        adapter=adapter,
        device=device,
        dtype=dtype,
        linear=linear,
        weight_residency=weight_residency,
        model_placement=model_placement,
        model_lifetime=model_lifetime,
        vae_tiles_at_once=vae_tiles_at_once,
        device_memory_gib=device_memory_gib,
        host_memory_gib=host_memory_gib,
    )
    options.require(settings_table, "model_dir", "--model")
    request = from_mapping(VideoRequest, "the request", request_table)
    settings = from_mapping(Settings, "the settings", {"model_lifetime": "per-request", **settings_table})
    check_files(request)

    from vflash.container import Container

    with Container(settings=settings).pipeline() as engine:
        found = engine.plan(request).describe()
    print(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))
    if not found["chosen"]["fits"]:
        raise typer.Exit(1)


def _lines(found: dict[str, Any]) -> list[str]:
    rows, machine, chosen = found["rows"], found["machine"], found["chosen"]
    device = (
        "the host" if machine["device_bytes"] is None else f"{_gib(machine['device_bytes'])} on {machine['device']}"
    )
    lines = [
        f"{found['canvas']['width']}x{found['canvas']['height']}, {found['model_frames']} frames, "
        f"{found['evaluations']} evaluations: {rows['total']} packed rows",
        f"room: {device}, {_gib(machine['host_bytes'])} of host memory",
        f"{'':2}{'weights':12}{'linear':17}{'device':>11}{'pinned':>11}{'host':>11}{'to read':>11}  fits",
    ]
    for choice in found["choices"]:
        same = all(choice[name] == chosen[name] for name in ("weight_residency", "linear"))
        sizes = "".join(
            f"{_gib(choice[name]):>11}" for name in ("device_bytes", "pinned_bytes", "host_bytes", "bytes_to_read")
        )
        lines.append(
            f"{'* ' if same else '  '}{choice['weight_residency']:12}{choice['linear']:17}{sizes}"
            f"  {'yes' if choice['fits'] else 'no: ' + '; '.join(choice['obstacles'])}"
        )
    stages = ", ".join(f"{name} {_gib(size)}" for name, size in chosen["device_bytes_by_stage"].items())
    return [*lines, f"device, stage by stage: {stages}", *([found["advice"]] if found["advice"] else [])]


def _gib(byte_count: int) -> str:
    return f"{byte_count / 2**30:.2f} GiB"
