"""Fields of `VideoRequest` and `Settings` as options: a command names the fields it takes, each declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import frozen

from vflash.cli import options
from vflash.domain.fields import from_mapping
from vflash.domain.request import VideoRequest
from vflash.settings import Settings

REQUEST: Mapping[str, Any] = {
    "prompt": options.Prompt,
    "first_frame": options.FirstFrame,
    "last_frame": options.LastFrame,
    "references": options.References,
    "width": options.Width,
    "height": options.Height,
    "duration_s": options.Duration,
    "steps": options.Steps,
    "video_shift": options.VideoShift,
    "audio_shift": options.AudioShift,
    "seed": options.Seed,
    "save_latents": options.SaveLatents,
    "audio_delivery_profile": options.AudioDelivery,
    "keyframe_delivery_profile": options.KeyframeDelivery,
}

MODEL = {"model_dir": options.Model, "device": options.Device, "dtype": options.Dtype, "log": options.Log}
READING = {
    "weight_reading": options.WeightReading,
    "weight_read_workers": options.WeightReadWorkers,
    "weight_sidecar": options.WeightSidecar,
    "sidecar_merge": options.SidecarMerge,
    "qkv_order": options.QkvOrder,
}
ADAPTATION = {
    "profile": options.Profile,
    "adapter": options.Adapter,
    "adapter_alpha": options.AdapterAlpha,
    "adapter_strength": options.AdapterStrength,
    "adapter_qkv_order": options.AdapterQkvOrder,
    "assets": options.Assets,
}
LINEAR = {
    "linear": options.Linear,
    "fp8_kernels": options.Fp8Kernels,
    "fp8_fast_accum": options.Fp8FastAccum,
}
ROOM = {"device_memory_gib": options.DeviceMemory, "host_memory_gib": options.HostMemory}
MEMORY = {
    "weight_residency": options.WeightResidency,
    "model_placement": options.ModelPlacement,
    "model_lifetime": options.ModelLifetime,
    **ROOM,
    "ffn_chunk_rows": options.FfnChunkRows,
}
BLOCKS = {
    "block_kernels": options.BlockKernels,
    "attention_backend": options.AttentionBackend,
    "veda_predictor": options.VedaPredictor,
    "veda_dense_edge_layers": options.VedaDenseEdgeLayers,
    "veda_dense_backend": options.VedaDenseBackend,
    "veda_dense_steps": options.VedaDenseSteps,
    "veda_kernels": options.VedaKernels,
    "veda_target_budget": options.VedaTargetBudget,
    "veda_reference_budget": options.VedaReferenceBudget,
}
DECODER = {"video_decoder": options.VideoDecoder, "vae_tiles_at_once": options.VaeTilesAtOnce}
MEDIA = {
    "media_video_input": options.MediaVideoInput,
    "media_video_threads": options.MediaVideoThreads,
    "media_video_encoder": options.MediaVideoEncoder,
    "media_preset": options.MediaPreset,
    "media_crf": options.MediaCrf,
}
SETTINGS: Mapping[str, Any] = {**ADAPTATION, **MODEL, **BLOCKS, **LINEAR, **MEMORY, **READING, **DECODER, **MEDIA}


@frozen(kw_only=True)
class Given:
    """What the `--config` file and the options say together; the options win."""

    settings_table: dict[str, Any]
    request_table: dict[str, Any]

    def settings(self) -> Settings:
        """A command runs once: its models are released after their stages, unless it is told to keep them."""
        options.require(self.settings_table, "model_dir", "--model")
        return from_mapping(Settings, "the settings", {"model_lifetime": "per-request", **self.settings_table})

    def request(self) -> VideoRequest:
        options.require(self.request_table, "prompt", "--prompt or --prompt-file")
        return from_mapping(VideoRequest, "the request", self.request_table)


def takes(
    *, settings: Iterable[str], request: Iterable[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command receives them as `given: Given`; its own parameters stay as they are."""
    asked, chosen = list(request), list(settings)
    declared = {name: REQUEST[name] for name in asked} | {name: SETTINGS[name] for name in chosen}
    if "prompt" in declared:
        declared["prompt_file"] = options.PromptFile
    declared["config"] = options.Config

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [item for item in inspect.signature(command, eval_str=True).parameters.values() if item.name != "given"]

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            kept = {item.name: arguments.pop(item.name) for item in own}
            command(**kept, given=_given(arguments, asked, chosen))

        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=declaration)
            for name, declaration in declared.items()
        ]
        required = [item for item in own if item.default is item.empty]
        shown = [*required, *added, *(item for item in own if item not in required)]
        shown = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in shown]
        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        run.__annotations__ = {item.name: item.annotation for item in shown}
        return run

    return decorate


def _given(arguments: dict[str, Any], asked: list[str], chosen: list[str]) -> Given:
    settings_table, request_table = options.read_config(arguments["config"])
    request_table |= options.given(**{name: arguments[name] for name in asked})
    settings_table |= options.given(**{name: arguments[name] for name in chosen})
    prompt = options.read_prompt(arguments.get("prompt"), arguments.get("prompt_file"))
    if prompt is not None:
        request_table["prompt"] = prompt
    return Given(settings_table=settings_table, request_table=request_table)
