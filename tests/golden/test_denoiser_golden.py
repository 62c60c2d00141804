"""Layout, noise and latents against the public reference, per mode and on two checkpoints, float32 on the CPU."""

from __future__ import annotations

import pytest
import torch
from oracle import MODES, OracleRequest, OracleResult

from vflash.domain.model_facts import read_model_facts
from vflash.domain.packing import Condition, Keyframe, PictureBlock, SoundBlock, VideoBlock
from vflash.domain.plan import plan_request
from vflash.domain.request import Reference, ReferenceKind, VideoRequest
from vflash.model.positions import index_rows
from vflash.model.transformer import open_denoiser
from vflash.stages.denoise import denoise, draw_noise, lay_out
from vflash.stages.encode import Conditioning, Conditions
from vflash_adapters.attention.sdpa import sdpa_attention
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.residency.resident import Resident
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.observer import SilentObserver
from vflash_ports.text_encoder import TextConditioning

CASES = [(variant, mode) for variant in ("small", "other") for mode in MODES]


def conditioning_of(asked: OracleRequest, result: OracleResult) -> Conditioning:
    """What our encode stage would hand on, taken from the reference."""
    video, audio = list(result.condition_latents), list(result.audio_condition_latents)
    blocks: list[Condition] = [Keyframe(last=False)] * (asked.first is not None)
    blocks += [Keyframe(last=True)] * (asked.last is not None)
    visual, sounds = iter(video), iter(audio)
    for item in asked.references:
        kind = type(item).__name__
        sound = next(sounds).shape[0] // 2 if kind == "Sound" or getattr(item, "waveform", None) is not None else 0
        if kind == "Sound":
            blocks.append(SoundBlock(latents=sound))
            continue
        frames, height, width = next(visual).shape[2:]
        if kind == "Picture":
            blocks.append(PictureBlock(height=height, width=width))
        else:
            blocks.append(VideoBlock(frames=frames, height=height, width=width, sound_latents=sound))
    return Conditioning(
        text=TextConditioning(embeds=result.prompt_embeds, tags=result.text_token_tags),
        conditions=Conditions(
            blocks=tuple(blocks), video=tuple(video), audio=tuple(rows.reshape(2, -1, rows.shape[1]) for rows in audio)
        ),
    )


def request_of(asked: OracleRequest, tmp_path) -> VideoRequest:
    kinds = {"Picture": ReferenceKind.PICTURE, "Video": ReferenceKind.VIDEO, "Sound": ReferenceKind.AUDIO}
    return VideoRequest(
        prompt=asked.prompt,
        width=asked.width,
        height=asked.height,
        seed=asked.seed,
        steps=asked.evaluations,
        first_frame=tmp_path if asked.first is not None else None,
        last_frame=tmp_path if asked.last is not None else None,
        references=tuple(Reference(kind=kinds[type(item).__name__], path=tmp_path) for item in asked.references),
    )


@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_denoising_equals_the_reference(variant, mode, oracle, tiny_checkpoints, tmp_path):
    """Positions, tags and noise are bit-equal; final latents agree within 1e-5 relative."""
    folder = tiny_checkpoints[variant]
    asked, result = oracle.request(mode), oracle.mode(folder, mode)
    plan = plan_request(request_of(asked, tmp_path), read_model_facts(folder))
    facts = read_model_facts(folder, denoiser=plan.denoiser)
    conditioning = conditioning_of(asked, result)

    layout = lay_out(plan, facts.denoiser, conditioning)
    index = index_rows(layout, result.text_token_tags)
    assert torch.equal(index.positions, result.position_ids)
    assert torch.equal(torch.tensor([0, 1, 2, 0, 2])[index.roles], result.token_tags)

    noise = draw_noise(plan, facts.denoiser, conditioning)
    rows = [noise.condition, noise.video] if noise.condition is not None else [noise.video]
    assert torch.equal(torch.cat(rows), result.initial_video_rows)
    assert torch.equal(noise.audio, result.initial_audio_rows[result.num_condition_audio_rows :])

    with open_denoiser(
        MmapWeights(folder / plan.denoiser),
        what=variant,
        facts=facts.denoiser,
        execution=Bf16Linear(),
        kernels=TorchBlockKernels(),
        residency=Resident(),
        device=torch.device("cpu"),
        dtype=torch.float32,
        ffn_chunk_rows=256,
    ) as denoiser:
        latents, report = denoise(plan, conditioning, denoiser, sdpa_attention("sdpa"), SilentObserver())
    assert relative(latents.video, result.latents) < 1e-5
    assert relative(latents.audio, result.audio_latents) < 1e-5
    assert report.dense_calls == asked.evaluations * facts.denoiser.num_layers


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())
