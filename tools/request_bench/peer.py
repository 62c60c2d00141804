"""diffusers' own transformer with the same weights and the same packed rows: its velocities, and seconds a step."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from attrs import asdict, frozen

from vflash.domain.model_facts import DenoiserFacts
from vflash.domain.plan import Plan
from vflash.model.patching import patchify, sound_rows
from vflash.model.positions import Role, index_rows
from vflash.model.sigmas import grids
from vflash.model.transformer import Denoiser
from vflash.stages.denoise import denoise, draw_noise, lay_out
from vflash.stages.encode import Conditioning
from vflash.stages.watch import RequestWatch
from vflash_ports.attention import Attention
from vflash_ports.weights import WeightSource


@frozen(kw_only=True, eq=False)
class Step:
    """One evaluation from pure noise: velocity rows, float32 on the CPU, and seconds."""

    video: torch.Tensor
    audio: torch.Tensor
    seconds: float


def open_peer(source: WeightSource, facts: DenoiserFacts, device: torch.device) -> Any:
    """The whole model, every block of it, on the device in the released precision."""
    from diffusers import MiniMaxH3Transformer3DModel

    make: Any = MiniMaxH3Transformer3DModel
    with torch.device("meta"):
        module = make(**asdict(facts))
    module.rope = type(module.rope)(facts.rope_freq_dim, facts.rope_theta)  # computed, in no file
    with source.open() as reader:
        module.load_state_dict({name: reader.get_tensor(name) for name in source.specs()}, assign=True)
    return module.eval().requires_grad_(requires_grad=False).to(device)


@torch.inference_mode()
def peer_step(module: Any, plan: Plan, conditioning: Conditioning, facts: DenoiserFacts, device: torch.device) -> Step:
    layout, noise = lay_out(plan, facts, conditioning), draw_noise(plan, facts, conditioning)
    index = index_rows(layout, conditioning.text.tags.cpu())
    timesteps = torch.tensor(grids(plan.schedule).role_timesteps(0), dtype=torch.float32)[index.roles]
    distinct, indices = torch.unique(timesteps, sorted=True, return_inverse=True)
    rows, tags = torch.arange(layout.rows), torch.tensor([int(role.tag) for role in Role])
    inputs = {
        "hidden_states": noise.video[None],
        "audio_hidden_states": noise.audio[None],
        "encoder_hidden_states": conditioning.text.embeds[None],
        "timestep": distinct,
        "timestep_indices": indices,
        "token_tags": tags[index.roles],
        "position_ids": index.positions,
        "video_indices": rows[index.target_video],
        "audio_indices": rows[index.target_audio],
        "text_indices": rows[: index.text_rows],
    }
    placed = {name: value.to(device) for name, value in inputs.items()}
    (video, audio), seconds = _timed(lambda: module(**placed, return_dict=False), device)
    return Step(video=video[0].float().cpu(), audio=audio[0].float().cpu(), seconds=seconds)


def own_step(plan: Plan, conditioning: Conditioning, denoiser: Denoiser, attention: Attention) -> Step:
    """The product's denoise stage with one evaluation, whose schedule goes from noise to x + v: v is the difference."""
    assert plan.schedule.evaluations == 1
    watch, noise = RequestWatch(), draw_noise(plan, denoiser.facts, conditioning)
    latents, _ = denoise(plan, conditioning, denoiser, attention, watch)
    return Step(
        video=patchify(latents.video, denoiser.facts.patch_size) - noise.video,
        audio=sound_rows(latents.audio.transpose(1, 2)) - noise.audio,
        seconds=watch.stages["evaluations"]["elapsed_seconds"],
    )


def difference(ours: Step, theirs: Step) -> dict[str, float]:
    """||ours - theirs|| / ||theirs||, by modality."""
    pairs = {"video": (ours.video, theirs.video), "audio": (ours.audio, theirs.audio)}
    return {name: float((a.double() - b.double()).norm() / b.double().norm()) for name, (a, b) in pairs.items()}


def _timed(run: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    _wait(device)
    started = perf_counter()
    result = run()
    _wait(device)
    return result, perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
