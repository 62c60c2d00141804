"""Train the denoiser and the text encoder together: a velocity toward the data, all modes, one batch a mode."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from attrs import frozen

from tiny_h3.companion import EVERY_STEPS, Companion
from tiny_h3.denoiser import hidden_matrices
from tiny_h3.graphed import GraphedSteps
from tiny_h3.guidance import Guidance
from tiny_h3.model import TEXT, Model, open_model
from tiny_h3.muon import Optimiser
from tiny_h3.pool import Pool
from tiny_h3.stage import Budget, Log, Progress, SaveClock, compute_dtype, learning_rate, save_state
from tiny_h3.tasks import Example, Laying, Task, draw_base, draw_noise, noised_at
from tiny_h3.text import Presenter
from vflash_adapters.tiny_checkpoint import Dimensions

MATRIX_RATE, OTHER_RATE = 0.02, 2e-3
AVERAGE = 0.998
FIRST_LOGGED = (1, 10)
JOINT = {Task.T2VA: 0.48, Task.I2VA: 0.12, Task.L2VA: 0.10, Task.FL2VA: 0.08, Task.REF2VA: 0.22}
KEYFRAMES_ONLY = {Task.T2VA: 0.45, Task.I2VA: 0.22, Task.L2VA: 0.15, Task.FL2VA: 0.18}
REFERENCES_ONLY = {Task.REF2VA: 1.0}
REFERENCE_PARTS = ("transformer_blocks.7.", "token_refiner.", "norm1.weight", "norm2.weight", "proj_in", "proj_out")
"""What `transformer_ref` has of its own: few tensors, so that both denoisers fit one small asset."""


@frozen(kw_only=True)
class DenoiserJob:
    """`start` is where to begin when `state` does not exist. Trained are the names that hold one of `only`. With
    `scale` other than 1, text alone learns the guided velocity of the model in `start`. `company` is where it meets
    another training of the same model, which `leads` or follows."""

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
    scale: float = 1.0
    company: Path | None = None
    leads: bool = True
    compiled: bool = False


def train_denoiser(job: DenoiserJob, pools: list[Pool], presenter: Presenter, device: torch.device) -> None:
    """Goes on from `state`, else from `start`, else from nothing. Saves the moving average."""
    source = next((path for path in (job.state, job.start) if path is not None and path.exists()), None)
    model, facts = open_model(job.sizes, presenter, source, device, seed=job.seed, compiled=job.compiled)
    training = _Training(job, model, presenter, device)
    done = int(facts.get("steps", 0)) if source == job.state else 0
    generator = torch.Generator().manual_seed(job.seed + done)
    log, progress = Log(path=job.log, stage=job.stage), Progress(budget=job.budget)
    company, clock = _company(job, training), SaveClock()
    while not progress.done:
        if company is not None and progress.step % EVERY_STEPS == 0:
            company.exchange(progress)
        task, number = draw_kind(job.mixture, pools, generator)
        parts = training.step(progress, task, pools[number], number, generator)
        progress.step += 1
        if progress.step % 50 == 0 or progress.step in FIRST_LOGGED or progress.done:
            graphs = training.steps.state()
            log.write(step=done + progress.step, share=progress.share, task=task, graphs=graphs, **_named(parts))
        if clock.due():
            save_state(job.state, training.average, {"steps": done + progress.step}, torch.bfloat16)
    if company is not None:
        company.leave()
    save_state(job.state, training.average, {"steps": done + progress.step}, torch.bfloat16)


class _Training:
    """One optimiser step on a batch of one task, canvas and caption length; a CUDA graph for each such kind."""

    def __init__(self, job: DenoiserJob, model: Model, presenter: Presenter, device: torch.device) -> None:
        self.job, self.model, self.steps = job, model, GraphedSteps(device)
        everything = model.everything()
        self.trained = {k: v for k, v in everything.items() if any(part in k for part in job.only)}
        self.untouched = [v for k, v in everything.items() if k not in self.trained]
        hidden = hidden_matrices({name: value for name, value in self.trained.items() if not name.startswith(TEXT)})
        self.optimiser = Optimiser(self.trained, hidden, matrix_rate=MATRIX_RATE, other_rate=OTHER_RATE)
        self.average = {name: value.detach().clone() for name, value in everything.items()}
        self.following = torch.zeros((), device=device)
        self.laying = Laying(presenter, model.facts, device, compute_dtype(device))
        self.guidance = _guidance(job, presenter, device)

    def step(self, progress: Progress, task: Task, pool: Pool, number: int, generator: torch.Generator) -> torch.Tensor:
        """Losses [3]: both, video, audio; read them before the next step."""
        self.optimiser.schedule(self.job.rate * learning_rate(1.0, progress.share, progress.step))
        self.following.fill_(1.0 - min(AVERAGE, progress.step / (progress.step + 20)))
        clips, prompts = self.laying.draw(pool, task, self.job.batch, generator)
        update = partial(self._update, pool, task)
        return self.steps((task, number, prompts.shape[1]), update, clips, prompts)

    def _update(self, pool: Pool, task: Task, clips: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
        for value in self.trained.values():
            value.grad = None  # a capture that failed half-way leaves some
        loss, parts = flow_loss(self.model, self.laying.example(pool, task, clips, prompts), self.guidance)
        loss.backward()
        for value in self.untouched:
            value.grad = None  # asked for all the same: the compiled block is then the one of the stage before
        self.optimiser.step()
        _follow([self.average[name] for name in self.trained], list(self.trained.values()), self.following)
        return parts


def _company(job: DenoiserJob, training: _Training) -> Companion | None:
    if job.company is None:
        return None
    company = Companion(folder=job.company, parameters=list(training.trained.values()), leads=job.leads)
    if not job.leads:
        company.wait_for_leader()
    return company


def _guidance(job: DenoiserJob, presenter: Presenter, device: torch.device) -> Guidance | None:
    if job.scale == 1.0:
        return None
    assert job.start is not None
    teacher, _ = open_model(job.sizes, presenter, job.start, device, compiled=False)
    return Guidance(teacher=teacher, silent=presenter.silent, scale=job.scale)


def draw_kind(mixture: Mapping[Task, float], pools: list[Pool], generator: torch.Generator) -> tuple[Task, int]:
    """A task by its share, and a pool's number by its clips."""
    tasks, shares = list(mixture), torch.tensor(list(mixture.values()))
    counts = torch.tensor([float(pool.count) for pool in pools])
    task = tasks[int(torch.multinomial(shares, 1, generator=generator))]
    return task, int(torch.multinomial(counts, 1, generator=generator))


def flow_loss(model: Model, example: Example, guidance: Guidance | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean squared error of both velocities against data minus noise, generated rows only; and that detached, its
    video and its audio part, [3]."""
    noise = draw_noise(example)
    base = draw_base(example.video.shape[0], example.video.device)
    noised = noised_at(example, noise, base, model.encoder)
    video, audio = model.denoiser.velocities(model.parameters, noised, example.layout)
    wanted = example.video - noise.video
    if guidance is not None and example.condition is None:
        wanted = wanted + guidance.push(example, noised)
    video_loss = (video - wanted).square().mean()
    audio_loss = (audio - (example.audio - noise.audio)).square().mean()
    loss = video_loss + audio_loss
    return loss, torch.stack([loss, video_loss, audio_loss]).detach()


@torch.no_grad()
def _follow(average: list[torch.Tensor], current: list[torch.nn.Parameter], share: torch.Tensor) -> None:
    difference = torch._foreach_sub([value.detach() for value in current], average)
    torch._foreach_mul_(difference, share)
    torch._foreach_add_(average, difference)


def _named(parts: torch.Tensor) -> dict[str, float]:
    return dict(zip(("loss", "video", "audio"), parts.tolist(), strict=True))
