"""Denoise: pack, draw noise in the one order that a seed means, then one forward an evaluation."""

from __future__ import annotations

import torch
from attrs import frozen

from vflash.domain.duration import AUDIO_CHANNELS
from vflash.domain.model_facts import DenoiserFacts
from vflash.domain.packing import PackedLayout, pack
from vflash.domain.plan import Plan
from vflash.model.patching import patchify, sound_latents, sound_rows, unpatchify
from vflash.model.positions import index_rows
from vflash.model.sigmas import Grids, euler_step, grids, noise_condition
from vflash.model.transformer import Denoiser, DenoiserInputs, PreparedDenoiser
from vflash.stages.encode import Conditioning
from vflash_ports.attention import Attention, AttentionLayout, AttentionReport
from vflash_ports.errors import NonFiniteError
from vflash_ports.media import Latents
from vflash_ports.observer import Observer


@frozen(kw_only=True, eq=False)
class Noise:
    """float32 CPU rows: `condition` is already mixed with the clean latents."""

    condition: torch.Tensor | None
    video: torch.Tensor
    audio: torch.Tensor


def lay_out(plan: Plan, facts: DenoiserFacts, conditioning: Conditioning) -> PackedLayout:
    return pack(
        text_rows=conditioning.text.embeds.shape[0],
        conditions=conditioning.conditions.blocks,
        latent_frames=plan.length.latent_frames,
        latent_height=plan.latent_height,
        latent_width=plan.latent_width,
        audio_latents=plan.length.audio_latents,
        patch=facts.patch_size,
    )


def draw_noise(plan: Plan, facts: DenoiserFacts, conditioning: Conditioning) -> Noise:
    """From one CPU generator: each visual condition in packed order, the video latents, then the audio rows."""
    generator = torch.Generator().manual_seed(plan.seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32)

    noised = [noise_condition(clean, draw(*clean.shape)) for clean in conditioning.conditions.video]
    rows = [patchify(latents, facts.patch_size) for latents in noised]
    video = draw(1, facts.in_channels, plan.length.latent_frames, plan.latent_height, plan.latent_width)
    audio = draw(AUDIO_CHANNELS * plan.length.audio_latents, facts.audio_in_channels)
    return Noise(condition=torch.cat(rows) if rows else None, video=patchify(video, facts.patch_size), audio=audio)


def attention_layout(layout: PackedLayout, denoiser: Denoiser, evaluations: int) -> AttentionLayout:
    facts = denoiser.facts
    return AttentionLayout(
        segments=tuple(run.segment() for run in layout.runs),
        rows=layout.rows,
        heads=facts.num_attention_heads,
        head_dim=facts.attention_head_dim,
        blocks=facts.num_layers,
        evaluations=evaluations,
        device=denoiser.device,
        dtype=denoiser.dtype,
    )


@torch.inference_mode()
def denoise(
    plan: Plan, conditioning: Conditioning, denoiser: Denoiser, attention: Attention, observer: Observer
) -> tuple[Latents, AttentionReport]:
    """Runs exactly `plan.schedule.evaluations` forwards. Raises `NonFiniteError` naming evaluation and block."""
    layout = lay_out(plan, denoiser.facts, conditioning)
    noise = draw_noise(plan, denoiser.facts, conditioning)
    steps = grids(plan.schedule)
    with observer.stage("prepare"):
        attend = attention.prepare(attention_layout(layout, denoiser, steps.evaluations))
        audio = conditioning.conditions.audio
        inputs = DenoiserInputs(
            index=index_rows(layout, conditioning.text.tags.cpu()),
            embeds=conditioning.text.embeds,
            condition_video=noise.condition,
            condition_audio=torch.cat([sound_rows(item) for item in audio]) if audio else None,
            grids=steps,
        )
        prepared = denoiser.prepare(inputs, attend, observer)
    with observer.stage("evaluations"):
        video_rows, audio_rows = _loop(prepared, noise, steps, observer)
    return _latents(plan, denoiser.facts, video_rows, audio_rows), attend.report()


def _loop(
    prepared: PreparedDenoiser, noise: Noise, steps: Grids, observer: Observer
) -> tuple[torch.Tensor, torch.Tensor]:
    device = prepared.denoiser.device
    video, audio = noise.video.to(device), noise.audio.to(device)
    for evaluation in range(steps.evaluations):
        with observer.phase("evaluation", evaluation=evaluation):
            with observer.phase("engine_step", evaluation=evaluation):
                v_video, v_audio = prepared.evaluate(evaluation, video, audio)
            with observer.phase("progress_fence", evaluation=evaluation):
                # The one host synchronisation of an evaluation: progress must not run ahead of the work.
                finite = bool(v_video.isfinite().all() & v_audio.isfinite().all())
            if not finite:
                raise _non_finite(prepared, video, audio, evaluation, steps.evaluations)
            with observer.phase("latent_update", evaluation=evaluation):
                video = euler_step(video, v_video, steps.video, evaluation)
                audio = euler_step(audio, v_audio, steps.audio, evaluation)
        with observer.phase("progress_callback", evaluation=evaluation):
            observer.progress("denoising", evaluation + 1, steps.evaluations)
    with observer.phase("final_fence"):
        return video.cpu(), audio.cpu()


def _non_finite(
    prepared: PreparedDenoiser, video: torch.Tensor, audio: torch.Tensor, evaluation: int, evaluations: int
) -> NonFiniteError:
    where = prepared.first_non_finite(evaluation, video, audio)
    return NonFiniteError(
        f"NaN or infinity at evaluation {evaluation + 1} of {evaluations}, first seen in {where}; "
        "check the weights with `vflash verify`, or run in float32"
    )


def _latents(plan: Plan, facts: DenoiserFacts, video: torch.Tensor, audio: torch.Tensor) -> Latents:
    metadata = {
        "mode": plan.mode,
        "width": plan.canvas.width,
        "height": plan.canvas.height,
        "duration_s": plan.length.delivered_frames // 24,
        "model_frames": plan.length.model_frames,
        "steps": plan.schedule.evaluations,
        "seed": plan.seed,
    }
    return Latents(
        video=unpatchify(
            video,
            facts.patch_size,
            channels=facts.in_channels,
            frames=plan.length.latent_frames,
            height=plan.latent_height,
            width=plan.latent_width,
        ),
        audio=sound_latents(audio, AUDIO_CHANNELS),
        metadata={name: str(value) for name, value in metadata.items()},
    )
