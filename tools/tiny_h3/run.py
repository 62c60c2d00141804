"""The whole training in one go, each stage ending at its share of the time, each going on from what is there."""

from __future__ import annotations

from attrs import evolve

from tiny_h3.audio_vae import train_audio_vae
from tiny_h3.codecs import open_codecs
from tiny_h3.denoiser_stages import FOLLOWER_SEED, follow, train_denoisers
from tiny_h3.evaluate import reconstruct
from tiny_h3.jobs import audio_vae_job, turbo_job, veda_job, video_vae_job
from tiny_h3.judge_modes import judge_modes
from tiny_h3.plan import ENDS, ENDS_WITH_VAE, Clock, RunPlan
from tiny_h3.prepare import prepare
from tiny_h3.processes import following, start_audio
from tiny_h3.stage import Log, guarded, pick_device
from tiny_h3.text import open_presenter
from tiny_h3.turbo import train_turbo
from tiny_h3.veda import train_veda
from tiny_h3.video_vae import train_video_vae


def run(plan: RunPlan) -> None:
    """Every stage. One that fails is reported and what does not need it goes on."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    log, device = Log(path=plan.log, stage="run"), pick_device()
    trained = plan.path("vae.safetensors").exists()
    clock = Clock(plan=plan, ends=ENDS_WITH_VAE if trained else ENDS)
    presenter = open_presenter(plan.folder)
    audio = None
    if not plan.path("audio_vae.safetensors").exists():
        if plan.audio_beside:
            audio = start_audio(plan, clock)
        else:
            train_audio_vae(audio_vae_job(plan, clock.budget("vae")))
    if not trained:
        train_video_vae(video_vae_job(plan, clock.budget("vae")))
    with following(plan) as follower:
        prepared = prepare(plan, presenter, device, log, seconds=clock.seconds("pools"))
        train_denoisers(plan, clock, prepared, follower)
    pools = prepared.pools
    guarded("turbo", lambda: train_turbo(turbo_job(plan, clock.budget("turbo")), pools, presenter, device), log)
    guarded("veda", lambda: train_veda(veda_job(plan, clock.budget("veda")), pools, presenter, device), log)
    if audio is not None and audio.wait() != 0:
        raise RuntimeError("the audio VAE's process failed; its traceback is above")
    guarded("judge", lambda: judge_run(plan), log)


def follow_run(plan: RunPlan) -> None:
    """On a second GPU: the joint training once more, on clips of its own, until the leader ends."""
    presenter, clock = open_presenter(plan.folder), Clock(plan=plan, ends=ENDS_WITH_VAE)
    own = evolve(plan, pool_seed=FOLLOWER_SEED)
    log = Log(path=plan.log, stage="follower")
    follow(own, prepare(own, presenter, pick_device(), log, seconds=clock.seconds("pools")))


def judge_run(plan: RunPlan) -> None:
    """The judge on both VAEs alone, then on every mode of what is in the folder."""
    log, device = Log(path=plan.log, stage="judge"), pick_device()
    codecs = open_codecs(plan.sizes, plan.folder, device)
    log.write(reconstruction=reconstruct(codecs, min(16, plan.prompts), plan.canvases[0]).shares())
    judge_modes(plan, codecs, open_presenter(plan.folder), device, log)
