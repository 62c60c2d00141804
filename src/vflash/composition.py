"""What the container makes from `Settings`: plain functions, one choice each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from attrs import fields

from vflash.domain.choices import VideoDecoderChoice
from vflash.domain.memory import MemoryOptions
from vflash.domain.model_facts import ModelFacts, read_model_facts
from vflash.domain.profiles import KEYFRAMES, Profile
from vflash.model.transformer import Denoiser
from vflash.settings import Settings
from vflash.stages.adapter import ChosenAdapter
from vflash.stages.backends import Backends
from vflash.stages.chosen_assets import ChosenAssets
from vflash.stages.compile import Compiler
from vflash.stages.kept import Kept
from vflash.stages.models import Models
from vflash_adapters.weights.layouts.canonical_source import CanonicalOpener
from vflash_adapters.weights.lora.loader import LoraLoader
from vflash_ports.assets import AssetStore
from vflash_ports.errors import ContractError
from vflash_ports.latent_codec import LatentCodecProvider
from vflash_ports.text_encoder import TextEncoderProvider
from vflash_ports.weights import WeightOpener


def models_of(
    settings: Settings,
    backends: Backends,
    facts: Callable[[str], ModelFacts],
    encoder: TextEncoderProvider,
    codec: LatentCodecProvider,
) -> Models:
    keep, root = settings.keeps, settings.model_dir
    device, dtype = backends.device, backends.dtype

    def denoiser(folder: str) -> Callable[[], AbstractContextManager[Denoiser]]:
        return lambda: backends.open_denoiser(root / folder, facts(folder).denoiser)

    return Models(
        encoder=Kept(lambda: encoder.open(root, device=device, dtype=dtype), keep=keep),
        codec=Kept(lambda: codec.open(root, device=device, dtype=dtype), keep=keep),
        denoisers={folder: Kept(denoiser(folder), keep=keep) for folder in ("transformer", "transformer_ref")},
        first_denoiser="transformer" if backends.profile is None else backends.profile.component,
    )


def memory_options(settings: Settings) -> MemoryOptions:
    return MemoryOptions(
        tiles_at_once=settings.vae_tiles_at_once,
        weight_residency=settings.weight_residency,
        linear=settings.linear,
        placement=settings.model_placement,
        keep=settings.keeps,
    )


def chosen_adapter(settings: Settings) -> ChosenAdapter | None:
    if settings.adapter is None:
        return None
    loader = LoraLoader(
        alpha=settings.adapter_alpha,
        qkv_order=settings.adapter_qkv_order,
        strength=1.0 if settings.adapter_strength is None else settings.adapter_strength,
    )
    return ChosenAdapter(path=settings.adapter, loader=loader, profile=settings.running_profile)


def chosen_assets(settings: Settings, store: AssetStore) -> ChosenAssets | None:
    if settings.assets is None:
        return None
    chosen = ChosenAssets(assets=store.open(settings.assets))
    if settings.profile not in (None, chosen.profile.name):
        raise ContractError(f"assets {settings.assets} are for profile {chosen.profile.name}, not {settings.profile}")
    return chosen


def checkpoint_opener(settings: Settings, weights: WeightOpener, assets: ChosenAssets | None) -> WeightOpener:
    """Every component through its canonical names; the one that assets were compiled from, from them."""
    canonical = CanonicalOpener(weights, qkv_order=settings.qkv_order)
    if assets is None:
        return canonical
    return lambda path: assets.source if path.name == assets.component else canonical(path)


ALWAYS_NAMED = ("model_dir", "device", "dtype", "video_decoder", "vae_tiles_at_once", "model_placement")
NAMED_IF_CHOSEN = (
    *("media_video_input", "media_video_threads", "media_video_encoder", "media_preset", "media_crf"),
    *("weight_reading", "weight_read_workers", "weight_sidecar", "sidecar_merge", "qkv_order", "log"),
    *("device_memory_gib", "host_memory_gib"),
)


def decode_words(settings: Settings) -> list[str]:
    """The settings that `vflash decode` takes, as its options: what decides the pixels always, others if chosen."""
    named = {name: getattr(settings, name) for name in ALWAYS_NAMED}
    for name in NAMED_IF_CHOSEN:
        value = getattr(settings, name)
        if value != getattr(fields(Settings), name).default:
            named[name] = value
    named["model"] = named.pop("model_dir")
    words = [word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    # Beside another decoder it was meant for the denoiser's linears, and `decode` would refuse it.
    fast = settings.fp8_fast_accum and settings.video_decoder is VideoDecoderChoice.FUSED_FP8
    return [*words, "--fp8-fast-accum"] if fast else words


def running_profile(settings: Settings, assets: ChosenAssets | None) -> Profile | None:
    return settings.running_profile if assets is None else assets.profile


def compile_assets(
    compiler: Compiler, facts: Callable[[str], ModelFacts], output: Path, **options: Any
) -> dict[str, Any]:
    profile = compiler.backends.profile
    return compiler.compile(output, facts(profile.component if profile else KEYFRAMES).denoiser, **options)


def facts_reader(model_dir: Path) -> Callable[[str], ModelFacts]:
    return lambda folder: read_model_facts(model_dir, denoiser=folder)


def torch_dtype(settings: Settings) -> torch.dtype:
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[settings.dtype]
