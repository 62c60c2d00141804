"""The whole training in one go, each stage ending at its share of the time, each going on from what is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import define, evolve, field, frozen

from tiny_h3.audio_vae import AudioVaeJob, train_audio_vae
from tiny_h3.codecs import Codecs, audio_scale, open_audio_codec, open_video_codec
from tiny_h3.evaluate import reconstruct
from tiny_h3.judge_modes import JudgedRun, judge_modes
from tiny_h3.model import open_model
from tiny_h3.pool import Pool, PoolPlan, fill_pools
from tiny_h3.scale_choice import best_scale
from tiny_h3.sizes import FULL, TOY
from tiny_h3.stage import Budget, Log, pick_device
from tiny_h3.tasks import Laying, Task
from tiny_h3.text import MERGES, Presenter, corpus, load_presenter
from tiny_h3.train_denoiser import JOINT, REFERENCE_PARTS, REFERENCES_ONLY, DenoiserJob, flow_loss, train_denoiser
from tiny_h3.turbo import TurboJob, train_turbo
from tiny_h3.veda import VedaJob, train_veda
from tiny_h3.video_vae import VideoVaeJob, train_video_vae
from vflash_adapters.tiny_checkpoint import Dimensions
from vflash_adapters.tiny_checkpoint.tokenizer import write_tokenizer

ENDS = {
    "audio on its own": 0.25,
    "vae": 0.23,
    "pools": 0.29,
    "denoiser": 0.68,
    "guided": 0.78,
    "reference": 0.83,
    "turbo": 0.92,
    "veda": 0.945,
}
"""When each stage ends, as a share of the whole time; sampling and judging have the rest."""
ENDS_WITH_VAE = {**ENDS, "vae": 0.01, "pools": 0.08}
CANVASES = ((96, 128), (96, 96), (128, 96), (64, 64))
CANVAS_SHARES = (0.6, 0.15, 0.15, 0.1)
TURBO_BATCH = 64
SCALE_PROMPTS = 32
FOLLOWER_SEED = 5_500_000


@frozen(kw_only=True)
class RunPlan:
    """`steps` limits every stage (a smoke test); `seconds` is the whole run's time. `toy` uses the toy dimensions."""

    folder: Path
    seconds: float
    steps: int | None = None
    toy: bool = False
    clips: int = 48_000
    batch: int = 64
    prompts: int = 64
    compiled: bool = True
    audio_beside: bool = True
    pool_seed: int = 500_000
    canvases: tuple[tuple[int, int], ...] = CANVASES

    @property
    def sizes(self) -> Dimensions:
        return TOY if self.toy else FULL

    def path(self, name: str) -> Path:
        return self.folder / name


@define(kw_only=True)
class _Clock:
    plan: RunPlan
    ends: dict[str, float]
    begin: float = field(factory=time.perf_counter)

    def budget(self, stage: str) -> Budget:
        left = self.ends[stage] * self.plan.seconds - (time.perf_counter() - self.begin)
        return Budget(seconds=max(left, 1.0), steps=self.plan.steps)


def run(plan: RunPlan) -> None:
    """Every stage. One that fails is reported and what does not need it goes on."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    log = Log(path=plan.path("log.jsonl"), stage="run")
    device = pick_device()
    trained = plan.path("vae.safetensors").exists()
    clock = _Clock(plan=plan, ends=dict(ENDS_WITH_VAE if trained else ENDS))
    presenter = open_presenter(plan.folder)
    beside = None if plan.path("audio_vae.safetensors").exists() else _train_audio(plan, clock)
    if not trained:
        train_video_vae(
            VideoVaeJob(sizes=plan.sizes, folder=plan.folder, budget=clock.budget("vae"), **_small_video(plan))
        )
    follower = _follower(plan, clock)
    pools = _pools(plan, clock, presenter, device, log)
    compiled = plan.compiled and device.type == "cuda" and _compiles(plan, pools, presenter, device, log)
    _train_denoisers(plan, clock, pools, presenter, device, compiled=compiled, follower=follower)
    for name, stage in (
        ("turbo", lambda: train_turbo(_turbo_job(plan, clock), pools, presenter, device)),
        ("veda", lambda: train_veda(_veda_job(plan, clock), pools, presenter, device)),
    ):
        _guarded(name, stage, log)
    if beside is not None and beside.wait() != 0:
        raise RuntimeError("the audio VAE's process failed; its traceback is above")
    _guarded("judge", lambda: judge_run(plan), log)


def follow_run(plan: RunPlan) -> None:
    """On a second GPU: the joint training once more, on clips of its own, drawing together with the leader's."""
    device = pick_device()
    presenter, clock = open_presenter(plan.folder), _Clock(plan=plan, ends=dict(ENDS_WITH_VAE))
    plan = evolve(plan, pool_seed=FOLLOWER_SEED)
    log = Log(path=plan.path("log.jsonl"), stage="follower")
    pools = _pools(plan, clock, presenter, device, log)
    compiled = plan.compiled and device.type == "cuda" and _compiles(plan, pools, presenter, device, log)
    job = DenoiserJob(
        sizes=plan.sizes,
        state=plan.path("follower.safetensors"),
        start=plan.path("transformer.safetensors"),
        log=log.path,
        stage=log.stage,
        budget=Budget(steps=plan.steps),
        mixture=JOINT,
        batch=plan.batch,
        seed=FOLLOWER_SEED,
        company=plan.folder,
        leads=False,
        compiled=compiled,
    )
    train_denoiser(job, pools, presenter, device)


def judge_run(plan: RunPlan) -> None:
    """The judge on both VAEs alone, then on every mode of what is in the folder."""
    log, device = Log(path=plan.path("log.jsonl"), stage="judge"), pick_device()
    codecs = open_codecs(plan, device)
    log.write(reconstruction=reconstruct(codecs, min(16, plan.prompts), plan.canvases[0]).shares())
    judged = JudgedRun(folder=plan.folder, sizes=plan.sizes, canvas=plan.canvases[0], prompts=plan.prompts)
    judge_modes(judged, codecs, open_presenter(plan.folder), device, log)


def open_codecs(plan: RunPlan, device: torch.device) -> Codecs:
    return Codecs(
        video=open_video_codec(plan.sizes, plan.folder, device), audio=open_audio_codec(plan.sizes, plan.folder, device)
    )


def open_presenter(folder: Path) -> Presenter:
    """The run's tokenizer, learnt at the first run."""
    file = folder / "tokenizer" / "tokenizer.json"
    if not file.exists():
        write_tokenizer(file.parent, corpus(), MERGES)
    return load_presenter(file)


def _train_audio(plan: RunPlan, clock: _Clock) -> subprocess.Popen[bytes] | None:
    """In a process of its own: on a second GPU nothing waits for it, and one GPU is not filled by the video VAE alone.
    Denoisers do not need it: a scene's audio latents are its code."""
    if not plan.audio_beside:
        train_audio_vae(
            AudioVaeJob(sizes=plan.sizes, folder=plan.folder, budget=clock.budget("vae"), **_small_audio(plan))
        )
        return None
    two = torch.cuda.device_count() > 1
    seconds = clock.budget("audio on its own" if two else "vae").seconds or 60.0
    command = [sys.executable, "-m", "tiny_h3", "audio-vae", "--folder", str(plan.folder), "--seconds", str(seconds)]
    return subprocess.Popen(command, env={**os.environ, **({"CUDA_VISIBLE_DEVICES": "1"} if two else {})})


def _follower(plan: RunPlan, clock: _Clock) -> subprocess.Popen[bytes] | None:
    """A second GPU joins in. It has the same time for its clips, and compiles for itself."""
    for old in plan.folder.glob("averaging-*"):
        old.unlink()
    plan.path("follower.safetensors").unlink(missing_ok=True)
    if torch.cuda.device_count() < 2:
        return None
    command = [sys.executable, "-m", "tiny_h3", "follow", "--folder", str(plan.folder), "--batch", str(plan.batch)]
    command += ["--seconds", str(plan.seconds), "--clips", str(plan.clips)]
    return subprocess.Popen(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": "1"})


def _ended(process: subprocess.Popen[bytes]) -> None:
    """It hears that the leader has ended at its next exchange."""
    try:
        process.wait(timeout=30.0)
    except subprocess.TimeoutExpired:
        process.kill()


def _small_video(plan: RunPlan) -> dict[str, Any]:
    return {"batch": 1, "canvases": ((32, 32),), "statistics_clips": 1} if plan.toy else {}


def _small_audio(plan: RunPlan) -> dict[str, Any]:
    return {"batch": 1, "latents": 12} if plan.toy else {}


def _pools(plan: RunPlan, clock: _Clock, presenter: Presenter, device: torch.device, log: Log) -> list[Pool]:
    wanted = PoolPlan(
        canvases=plan.canvases,
        shares=CANVAS_SHARES[: len(plan.canvases)],
        clips=plan.clips,
        seconds=clock.budget("pools").seconds or 60.0,
        chunk=1 if plan.toy else 96,
        seed=plan.pool_seed,
    )
    begin = time.perf_counter()
    video = open_video_codec(plan.sizes, plan.folder, device)
    pools = fill_pools(wanted, video, audio_scale(device), presenter, device)
    log.write(done="pools", clips=[pool.count for pool in pools], seconds=time.perf_counter() - begin)
    return pools


def _compiles(plan: RunPlan, pools: list[Pool], presenter: Presenter, device: torch.device, log: Log) -> bool:
    """Whether the compiled block works here; a run must not be lost to a compiler."""
    begin = time.perf_counter()
    try:
        model, _ = open_model(plan.sizes, presenter, None, device, compiled=True)
        laying = Laying(presenter, model.facts, device, model.denoiser.dtype)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            drawn = laying.draw(pools[0], Task.T2VA, plan.batch, generator)
            loss, _parts = flow_loss(model, laying.example(pools[0], Task.T2VA, *drawn))
            loss.backward()
        torch.cuda.synchronize()
    except Exception:
        log.write(compiled=False, error=traceback.format_exc(limit=3)[-600:])
        return False
    log.write(compiled=True, seconds=time.perf_counter() - begin)
    return True


def _train_denoisers(
    plan: RunPlan,
    clock: _Clock,
    pools: list[Pool],
    presenter: Presenter,
    device: torch.device,
    *,
    compiled: bool,
    follower: subprocess.Popen[bytes] | None,
) -> None:
    """All modes together; then with guidance taken in; then a copy that learns references alone, with most of its
    tensors shared."""
    joint, base, own = (plan.path(f"{name}.safetensors") for name in ("joint", "transformer", "transformer_ref"))

    def train(stage: str, state: Path, start: Path, mixture: Mapping[Task, float], **special: Any) -> None:
        job = DenoiserJob(
            sizes=plan.sizes,
            state=state,
            start=start,
            log=plan.path("log.jsonl"),
            stage=stage,
            budget=clock.budget(stage),
            mixture=mixture,
            batch=plan.batch,
            compiled=compiled,
            **special,
        )
        train_denoiser(job, pools, presenter, device)

    train("denoiser", joint, base, JOINT, company=None if follower is None else plan.folder)
    if follower is not None:
        _ended(follower)
    base.unlink(missing_ok=True)  # what they begin from has changed
    own.unlink(missing_ok=True)
    scale = _best_scale(plan, presenter, device)
    if scale == 1.0:
        shutil.copyfile(joint, base)
    else:
        train("guided", base, joint, JOINT, rate=0.5, scale=scale)
    train("reference", own, base, REFERENCES_ONLY, rate=0.3, only=REFERENCE_PARTS)


def _best_scale(plan: RunPlan, presenter: Presenter, device: torch.device) -> float:
    log = Log(path=plan.path("log.jsonl"), stage="guidance")
    chosen = [1.0]

    def choose() -> None:
        model, _ = open_model(plan.sizes, presenter, plan.path("joint.safetensors"), device, compiled=False)
        count, codecs = min(SCALE_PROMPTS, plan.prompts), open_codecs(plan, device)
        chosen[0] = best_scale(model, codecs, presenter, log, canvas=plan.canvases[0], count=count)

    _guarded("guidance", choose, log)
    return chosen[0]


def _turbo_job(plan: RunPlan, clock: _Clock) -> TurboJob:
    return TurboJob(
        sizes=plan.sizes,
        denoiser=plan.path("transformer.safetensors"),
        adapter=plan.path("turbo.safetensors"),
        log=plan.path("log.jsonl"),
        budget=clock.budget("turbo"),
        batch=min(plan.batch, TURBO_BATCH),
        compiled=False,  # teacher and student would be compiled once more each
    )


def _veda_job(plan: RunPlan, clock: _Clock) -> VedaJob:
    return VedaJob(
        sizes=plan.sizes,
        denoiser=plan.path("transformer.safetensors"),
        predictor=plan.path("veda.safetensors"),
        log=plan.path("log.jsonl"),
        budget=clock.budget("veda"),
        batch=max(1, min(plan.batch, TURBO_BATCH) // 8),
    )


def _guarded(name: str, stage: Callable[[], None], log: Log) -> None:
    try:
        stage()
    except Exception:
        # The stages before have saved their work; a later one must not cost it.
        log.write(failed=name, error=traceback.format_exc()[-1500:])
