"""Conditioning to a bundle and back, checked against the checkpoint it was made with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vflash.domain.bundle import bundle_body, read_body
from vflash.domain.duration import AUDIO_CHANNELS
from vflash.domain.model_facts import ModelFacts
from vflash.domain.packing import Condition, Keyframe, PictureBlock, SoundBlock, VideoBlock
from vflash.domain.plan import Plan
from vflash.domain.profiles import Profile
from vflash.domain.request import VideoRequest
from vflash.stages.encode import Conditioning, Conditions
from vflash_ports.conditioning import ConditioningBundle
from vflash_ports.errors import CheckpointError
from vflash_ports.text_encoder import TextConditioning

CONFIGS = (
    "transformer/config.json",
    "transformer_ref/config.json",
    "vae/config.json",
    "audio_vae/config.json",
    "text_encoder/config.json",
    "scheduler/scheduler_config.json",
    "audio_scheduler/scheduler_config.json",
)
ENCODERS = ("text_encoder", "vae", "audio_vae")
SAMPLES, SAMPLE_BYTES = 16, 4096
"""Of every weight file: enough to tell one training from another without reading what an encoder weighs."""


def to_bundle(
    request: VideoRequest, plan: Plan, conditioning: Conditioning, model_dir: Path, dtype: torch.dtype
) -> ConditioningBundle:
    return ConditioningBundle(
        embeds=conditioning.text.embeds,
        tags=conditioning.text.tags,
        video=conditioning.conditions.video,
        audio=conditioning.conditions.audio,
        body=bundle_body(
            plan,
            conditioning.conditions.blocks,
            prompt_sha256=hashlib.sha256(request.prompt.encode()).hexdigest(),
            inputs=[file_digest(path) for path in request.inputs],
            identities=identities(model_dir, dtype),
        ),
    )


def from_bundle(
    bundle: ConditioningBundle, facts: ModelFacts, model_dir: Path, dtype: torch.dtype, profile: Profile | None
) -> tuple[Plan, Conditioning]:
    """Raises `CheckpointError` if the bundle is for another checkpoint, or its tensors are not what its body says."""
    what = bundle.bundle_id or "the bundle"
    plan, blocks = read_body(bundle.body, facts, identities(model_dir, dtype), profile=profile, what=what)
    _check_text(bundle, facts, what)
    _check_latents(bundle, blocks, plan, facts, what)
    return plan, Conditioning(
        text=TextConditioning(embeds=bundle.embeds, tags=bundle.tags),
        conditions=Conditions(blocks=blocks, video=bundle.video, audio=bundle.audio),
    )


def identities(model_dir: Path, dtype: torch.dtype) -> dict[str, str]:
    """What encoder and denoiser must agree on: every config of the checkpoint, samples of the weights that encode, and
    the dtype they ran in. Another denoiser beside the same encoders may go on from the same bundle."""
    digest = hashlib.sha256()
    for name in CONFIGS:
        path = model_dir / name
        digest.update(f"{name}\0".encode() + (path.read_bytes() if path.is_file() else b"") + b"\0")
    return {
        "checkpoint": digest.hexdigest(),
        "encoder": _sampled_digest(model_dir),
        "dtype": str(dtype).removeprefix("torch."),
    }


def _sampled_digest(model_dir: Path) -> str:
    """Names, sizes, and `SAMPLES` pieces from the first byte to the last of each weight file that encodes."""
    digest = hashlib.sha256()
    for path in (path for folder in ENCODERS for path in sorted((model_dir / folder).glob("*.safetensors"))):
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{path.parent.name}/{path.name}\0{size}\0".encode())
            last = max(0, size - SAMPLE_BYTES)
            for number in range(SAMPLES):
                file.seek(last * number // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def file_digest(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _check_text(bundle: ConditioningBundle, facts: ModelFacts, what: str) -> None:
    embeds, tags = bundle.embeds, bundle.tags
    if embeds.ndim != 2 or embeds.shape[1] != facts.denoiser.text_dim or not embeds.is_floating_point():
        raise CheckpointError(
            f"{what}: embeds are {list(embeds.shape)} {embeds.dtype}; [rows, {facts.denoiser.text_dim}] floats expected"
        )
    if tags.shape != embeds.shape[:1] or tags.dtype != torch.int64 or not bool(((tags == 0) | (tags == 1)).all()):
        raise CheckpointError(f"{what}: tags must be {embeds.shape[0]} int64 values, 0 for vision and 1 for text")
    tensors = (embeds, *bundle.video, *bundle.audio)
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise CheckpointError(f"{what}: holds NaN or infinity; encode the request again")


def _check_latents(
    bundle: ConditioningBundle, blocks: Sequence[Condition], plan: Plan, facts: ModelFacts, what: str
) -> None:
    found = ([tuple(item.shape) for item in bundle.video], [tuple(item.shape) for item in bundle.audio])
    expected = ([], []) if not blocks else _shapes(blocks, plan, facts)
    if found != expected or any(item.dtype != torch.float32 for item in (*bundle.video, *bundle.audio)):
        raise CheckpointError(f"{what}: its conditions call for float32 latents of {expected}, it holds {found}")


def _shapes(
    blocks: Sequence[Condition], plan: Plan, facts: ModelFacts
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Of video and audio latents, in packed order."""
    channels, sound = facts.codec.latent_channels, facts.codec.audio_latent_channels
    video: list[tuple[int, ...]] = []
    audio: list[tuple[int, ...]] = []
    for block in blocks:
        match block:
            case Keyframe():
                video.append((1, channels, 1, plan.latent_height, plan.latent_width))
            case PictureBlock():
                video.append((1, channels, 1, block.height, block.width))
            case SoundBlock():
                audio.append((AUDIO_CHANNELS, block.latents, sound))
            case VideoBlock():
                video.append((1, channels, block.frames, block.height, block.width))
                if block.sound_latents:
                    audio.append((AUDIO_CHANNELS, block.sound_latents, sound))
    return video, audio
