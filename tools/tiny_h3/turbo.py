"""Distil the denoiser into four evaluations: a LoRA whose single steps land where sixteen finer ones do.

At each of the four grid intervals the teacher walks four Euler sub-steps from the state the student itself reached
there; the student's one velocity must lead to the same place. Stored in the key layout of LightX2V's turbo adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import torch
from attrs import frozen
from safetensors.torch import save_file

from tiny_h3.model import Model, open_model
from tiny_h3.pool import Pool
from tiny_h3.sampler import Rows, at_place, grid, integrate, needed_velocities, step
from tiny_h3.stage import Budget, Log, Progress, compute_dtype, learning_rate
from tiny_h3.tasks import Example, Laying, Task, draw_noise
from tiny_h3.text import Presenter
from tiny_h3.train_denoiser import KEYFRAMES_ONLY, draw_kind
from vflash_adapters.tiny_checkpoint import Dimensions

EVALUATIONS = 4
SUBSTEPS = 4
RANK = 32
ALPHA = 32.0
PEAK_RATE = 2e-3
_MODULES = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "ff.net.0.proj", "ff.net.2")


@frozen(kw_only=True)
class TurboJob:
    sizes: Dimensions
    denoiser: Path
    adapter: Path
    log: Path
    budget: Budget
    mixture: Mapping[Task, float] = KEYFRAMES_ONLY
    batch: int = 32
    rank: int = RANK
    seed: int = 4
    compiled: bool = False


def train_turbo(job: TurboJob, pools: list[Pool], presenter: Presenter, device: torch.device) -> None:
    """Goes on from the adapter file if there is one."""
    model, _ = open_model(job.sizes, presenter, job.denoiser, device, compiled=job.compiled)
    model.encoder.requires_grad_(False)
    for value in model.parameters.values():
        value.requires_grad_(False)
    factors = _factors(model, job, device)
    optimiser = torch.optim.AdamW(factors.values(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    laying = Laying(presenter, model.facts, device, compute_dtype(device))
    generator = torch.Generator().manual_seed(job.seed)
    log, progress = Log(path=job.log, stage="turbo"), Progress(budget=job.budget)
    losses: list[float] = []
    while not progress.done:
        task, number = draw_kind(job.mixture, pools, generator)
        drawn = laying.draw(pools[number], task, job.batch, generator)
        example = laying.example(pools[number], task, *drawn)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(PEAK_RATE, progress.share, progress.step, warmup=20)
        losses = _trajectory(model, factors, job.rank, example, optimiser)
        progress.step += 1
        if progress.step % 10 == 0:
            log.write(step=progress.step, share=progress.share, **_by_interval(losses))
    save_adapter(job.adapter, factors, job.rank)
    log.write(step=progress.step, share=1.0, **_by_interval(losses))


def merged(model: Model, factors: Mapping[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    """All parameters, with alpha / rank * B A added to the adapted ones."""
    values: dict[str, torch.Tensor] = dict(model.parameters)
    for name in {key.rsplit(".lora_", 1)[0] for key in factors}:
        down, up = factors[f"{name}.lora_A.weight"], factors[f"{name}.lora_B.weight"]
        values[f"{name}.weight"] = values[f"{name}.weight"] + (ALPHA / rank) * (up @ down)
    return values


def save_adapter(path: Path, factors: Mapping[str, torch.Tensor], rank: int) -> None:
    """BF16, with rank, alpha and the schedule it was made for in the metadata."""
    metadata = {
        "rank": str(rank),
        "alpha": str(ALPHA),
        "num_evaluations": str(EVALUATIONS),
        "video_shift": "12.0",
        "audio_shift": "3.0",
    }
    stored = {name: value.detach().to(torch.bfloat16).cpu().contiguous() for name, value in factors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(stored, path, metadata=metadata)


def load_adapter(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: value.float() for name, value in load_file(path).items()}


def _trajectory(
    model: Model,
    factors: Mapping[str, torch.Tensor],
    rank: int,
    example: Example,
    optimiser: torch.optim.Optimizer,
) -> list[float]:
    """One walk of the student, one update at each of its evaluations."""
    places = grid(1.0, 0.0, EVALUATIONS, example.video.device)
    noise, text = draw_noise(example), model.encoder(example.ids)
    rows, losses = Rows(audio=noise.audio, video=noise.video), []
    for now, following in pairwise(places):
        fine = grid(float(now), float(following), SUBSTEPS, now.device)
        wanted = needed_velocities(rows, integrate(model, example, rows, fine, text), now, following)
        noised = at_place(example, rows, now, text)
        found = model.denoiser.velocities(merged(model, factors, rank), noised, example.layout)
        loss = (found[0] - wanted[0]).square().mean() + (found[1] - wanted[1]).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(factors.values()), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        rows = step(rows, (found[0].detach(), found[1].detach()), now, following)
        losses.append(float(loss.detach()))
    return losses


def _factors(model: Model, job: TurboJob, device: torch.device) -> dict[str, torch.nn.Parameter]:
    """A small and random, B zero: the adapter starts as nothing."""
    if job.adapter.exists():
        return {name: torch.nn.Parameter(value.to(device)) for name, value in load_adapter(job.adapter).items()}
    generator = torch.Generator().manual_seed(job.seed)
    factors = {}
    for block in range(model.facts.num_layers):
        for module in _MODULES:
            name = f"transformer_blocks.{block}.{module}"
            outputs, inputs = model.parameters[f"{name}.weight"].shape
            down = torch.randn(job.rank, inputs, generator=generator) * inputs**-0.5
            factors[f"{name}.lora_A.weight"] = torch.nn.Parameter(down.to(device))
            factors[f"{name}.lora_B.weight"] = torch.nn.Parameter(torch.zeros(outputs, job.rank, device=device))
    return factors


def _by_interval(losses: list[float]) -> dict[str, float]:
    return {f"evaluation_{index}": loss for index, loss in enumerate(losses)}
