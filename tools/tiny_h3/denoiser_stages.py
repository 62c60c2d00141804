"""The denoiser's stages in turn: all modes together, guidance taken in, and a copy for references."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from attrs import evolve

from tiny_h3.codecs import open_codecs
from tiny_h3.model import open_model
from tiny_h3.plan import Clock, RunPlan
from tiny_h3.prepare import Prepared
from tiny_h3.processes import end_follower
from tiny_h3.scale_choice import best_scale
from tiny_h3.stage import Budget, Log, guarded
from tiny_h3.tasks import Task
from tiny_h3.train_denoiser import JOINT, REFERENCE_PARTS, REFERENCES_ONLY, DenoiserJob, train_denoiser

FOLLOWER_SEED = 5_500_000
"""Its weights, batches and clips: past those of the leader's last canvas."""


def train_denoisers(
    plan: RunPlan, clock: Clock, prepared: Prepared, follower: subprocess.Popen[bytes] | None = None
) -> None:
    """With a follower, the joint training draws together with it, and the follower ends with it."""
    job = _job(plan, prepared, "denoiser", clock.budget("denoiser"), state="joint", mixture=JOINT)
    company = None if follower is None else plan.folder
    _train(evolve(job, start=plan.path("transformer.safetensors"), company=company), prepared)
    if follower is not None:
        end_follower(follower, Log(path=plan.log, stage="follower"))
    refine(plan, clock, prepared, scale=_scale(plan, prepared))


def refine(plan: RunPlan, clock: Clock, prepared: Prepared, *, scale: float) -> None:
    """From the joint state: `transformer` learns to be guided by `scale` (1 leaves it as it is), then
    `transformer_ref` learns references alone, with most of its tensors shared."""
    joint, base, own = (plan.path(f"{name}.safetensors") for name in ("joint", "transformer", "transformer_ref"))
    for old in (base, own):
        old.unlink(missing_ok=True)  # what they begin from has changed
    if scale == 1.0:
        shutil.copyfile(joint, base)
    else:
        job = _job(plan, prepared, "guided", clock.budget("guided"), state="transformer", mixture=JOINT)
        _train(evolve(job, start=joint, rate=0.5, scale=scale), prepared)
    job = _job(plan, prepared, "reference", clock.budget("reference"), state="transformer_ref", mixture=REFERENCES_ONLY)
    _train(evolve(job, start=base, rate=0.3, only=REFERENCE_PARTS), prepared)


def follow(plan: RunPlan, prepared: Prepared) -> None:
    """The joint training once more, drawing together with the leader's until that ends."""
    job = _job(plan, prepared, "follower", Budget(steps=plan.steps), state="follower", mixture=JOINT)
    _train(evolve(job, seed=FOLLOWER_SEED, company=plan.folder, leads=False), prepared)


def _job(
    plan: RunPlan, prepared: Prepared, stage: str, budget: Budget, *, state: str, mixture: Mapping[Task, float]
) -> DenoiserJob:
    return DenoiserJob(
        sizes=plan.sizes,
        state=plan.path(f"{state}.safetensors"),
        log=plan.log,
        stage=stage,
        budget=budget,
        mixture=mixture,
        batch=plan.batch,
        compiled=prepared.compiled,
    )


def _train(job: DenoiserJob, prepared: Prepared) -> None:
    train_denoiser(job, prepared.pools, prepared.presenter, prepared.device)


def _scale(plan: RunPlan, prepared: Prepared) -> float:
    """No guidance if it cannot be chosen: the joint state is worth going on from."""
    log = Log(path=plan.log, stage="guidance")
    return guarded("guidance", lambda: _chosen_scale(plan, prepared, log), log) or 1.0


def _chosen_scale(plan: RunPlan, prepared: Prepared, log: Log) -> float:
    state, device = plan.path("joint.safetensors"), prepared.device
    model, _ = open_model(plan.sizes, prepared.presenter, state, device, compiled=False)
    codecs = open_codecs(plan.sizes, plan.folder, device)
    return best_scale(model, codecs, prepared.presenter, log, canvas=plan.canvases[0], prompts=plan.prompts)
