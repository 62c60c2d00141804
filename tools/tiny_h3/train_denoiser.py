"""Train the denoiser and the text encoder together: a velocity toward the data, all modes, one batch a mode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from tiny_h3.denoiser import Denoiser, hidden_matrices, new_parameters
from tiny_h3.muon import Optimiser
from tiny_h3.pool import Pool
from tiny_h3.stage import Budget, Log, Progress, compute_dtype, learning_rate, load_state, save_state
from tiny_h3.tasks import Example, Laying, Task, draw_base, draw_noise, noised_at
from tiny_h3.text import Presenter
from tiny_h3.text_encoder import TextEncoder
from vflash.domain.model_facts import DenoiserFacts
from vflash_adapters.tiny_checkpoint import Dimensions

MATRIX_RATE, OTHER_RATE = 0.02, 2e-3
AVERAGE = 0.998
SAVE_EVERY_S = 30.0
FIRST_LOGGED = (1, 10)
TEXT = "text_encoder."
JOINT = {Task.T2VA: 0.36, Task.I2VA: 0.16, Task.L2VA: 0.10, Task.FL2VA: 0.12, Task.REF2VA: 0.26}
KEYFRAMES_ONLY = {Task.T2VA: 0.45, Task.I2VA: 0.22, Task.L2VA: 0.15, Task.FL2VA: 0.18}
REFERENCES_ONLY = {Task.REF2VA: 1.0}
REFERENCE_PARTS = ("transformer_blocks.7.", "token_refiner.", "norm1.weight", "norm2.weight", "proj_in", "proj_out")
"""What `transformer_ref` has of its own: few tensors, so that both denoisers fit one small asset."""


@frozen(kw_only=True)
class DenoiserJob:
    """`start` is where to begin when `state` does not exist. Trained are the names that hold one of `only`."""

    sizes: Dimensions
    state: Path
    log: Path
    stage: str
    budget: Budget
    mixture: Mapping[Task, float]
    start: Path | None = None
    only: tuple[str, ...] = ("",)
    batch: int = 64
    seed: int = 3
    rate: float = 1.0
    compiled: bool = False


@frozen(kw_only=True, eq=False)
class Model:
    """Everything trainable of one denoiser, and how to run it."""

    facts: DenoiserFacts
    parameters: dict[str, torch.nn.Parameter]
    encoder: TextEncoder
    denoiser: Denoiser

    def everything(self) -> dict[str, torch.nn.Parameter]:
        text = {TEXT + name: value for name, value in self.encoder.named_parameters()}
        return {**self.parameters, **text}


def open_model(
    sizes: Dimensions, presenter: Presenter, state: Path | None, device: torch.device, *, seed: int = 0, compiled: bool
) -> tuple[Model, dict[str, Any]]:
    """From a state file, or fresh."""
    torch.manual_seed(seed)
    facts = DenoiserFacts(**sizes.transformer)
    vocabulary = padded_vocabulary(presenter)
    encoder = TextEncoder(sizes.text, vocabulary, presenter.image_pad)
    values = new_parameters(sizes.transformer, torch.Generator().manual_seed(seed))
    stored: dict[str, Any] = {}
    if state is not None:
        tensors, stored = load_state(state)
        with torch.no_grad():
            for name, value in values.items():
                value.copy_(tensors[name])
        encoder.load_state_dict({k.removeprefix(TEXT): v for k, v in tensors.items() if k.startswith(TEXT)})
    parameters = {name: torch.nn.Parameter(value.detach().to(device)) for name, value in values.items()}
    denoiser = Denoiser(facts, compute_dtype(device), compiled=compiled)
    return Model(facts=facts, parameters=parameters, encoder=encoder.to(device), denoiser=denoiser), stored


def padded_vocabulary(presenter: Presenter) -> int:
    """As the checkpoint's config pads it."""
    return -(-presenter.tokenizer.get_vocab_size() // 64) * 64


def train_denoiser(job: DenoiserJob, pools: list[Pool], presenter: Presenter, device: torch.device) -> None:
    """Goes on from `state`, else from `start`, else from nothing. Saves the moving average."""
    source = next((path for path in (job.state, job.start) if path is not None and path.exists()), None)
    model, facts = open_model(job.sizes, presenter, source, device, seed=job.seed, compiled=job.compiled)
    trained = {k: v for k, v in model.everything().items() if any(part in k for part in job.only)}
    untouched = [v for k, v in model.everything().items() if k not in trained]
    hidden = hidden_matrices({name: value for name, value in trained.items() if not name.startswith(TEXT)})
    optimiser = Optimiser(trained, hidden, matrix_rate=MATRIX_RATE, other_rate=OTHER_RATE)
    average = {name: value.detach().clone() for name, value in model.everything().items()}
    laying = Laying(presenter, model.facts, device, compute_dtype(device))
    done = int(facts.get("steps", 0)) if source == job.state else 0
    generator = torch.Generator().manual_seed(job.seed + done)
    log, progress, saved = Log(path=job.log, stage=job.stage), Progress(budget=job.budget), 0.0
    while not progress.done:
        example, task = draw_example(job, pools, laying, generator)
        loss, parts = flow_loss(model, example)
        loss.backward()
        for value in untouched:
            value.grad = None  # asked for all the same: the compiled block is then the one of the stage before
        optimiser.step(job.rate * learning_rate(1.0, progress.share, progress.step))
        _follow(average, trained, min(AVERAGE, progress.step / (progress.step + 20)))
        progress.step += 1
        if progress.step % 50 == 0 or progress.step in FIRST_LOGGED:
            log.write(step=done + progress.step, share=progress.share, task=task, **_floats(parts))
        if progress.share - saved > SAVE_EVERY_S / (job.budget.seconds or 1e9):
            saved = progress.share
            save_state(job.state, average, {"steps": done + progress.step}, torch.bfloat16)
    save_state(job.state, average, {"steps": done + progress.step}, torch.bfloat16)
    log.write(step=done + progress.step, share=1.0, task=task, **_floats(parts))


def draw_example(
    job: DenoiserJob, pools: list[Pool], laying: Laying, generator: torch.Generator
) -> tuple[Example, Task]:
    tasks = list(job.mixture)
    shares = torch.tensor([job.mixture[task] for task in tasks])
    task = tasks[int(torch.multinomial(shares, 1, generator=generator))]
    counts = torch.tensor([float(pool.count) for pool in pools])
    pool = pools[int(torch.multinomial(counts, 1, generator=generator))]
    return laying.example(pool, task, job.batch, generator), task


def flow_loss(model: Model, example: Example) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Mean squared error of both velocities against data minus noise, generated rows only."""
    noise = draw_noise(example)
    base = draw_base(example.video.shape[0], example.video.device)
    noised = noised_at(example, noise, base, model.encoder)
    video, audio = model.denoiser.velocities(model.parameters, noised, example.layout)
    video_loss = (video - (example.video - noise.video)).square().mean()
    audio_loss = (audio - (example.audio - noise.audio)).square().mean()
    loss = video_loss + audio_loss
    return loss, {"loss": loss.detach(), "video": video_loss.detach(), "audio": audio_loss.detach()}


@torch.no_grad()
def _follow(average: dict[str, torch.Tensor], current: Mapping[str, torch.Tensor], keep: float) -> None:
    torch._foreach_lerp_([average[name] for name in current], [v.detach() for v in current.values()], 1.0 - keep)


def _floats(parts: Mapping[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in parts.items()}
