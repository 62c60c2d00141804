"""What all denoiser stages of a process train on: encoded clips, and a block that compiles or does not."""

from __future__ import annotations

import time
import traceback

import torch
from attrs import frozen

from tiny_h3.codecs import audio_scale, open_video_codec
from tiny_h3.model import open_model
from tiny_h3.plan import CANVAS_SHARES, RunPlan
from tiny_h3.pool import Pool, PoolPlan, fill_pools
from tiny_h3.stage import Log
from tiny_h3.tasks import Laying, Task
from tiny_h3.text import Presenter
from tiny_h3.train_denoiser import flow_loss


@frozen(kw_only=True, eq=False)
class Prepared:
    """`compiled` says whether the block is to be compiled."""

    pools: list[Pool]
    presenter: Presenter
    device: torch.device
    compiled: bool


def prepare(plan: RunPlan, presenter: Presenter, device: torch.device, log: Log, *, seconds: float) -> Prepared:
    """`seconds` is for the clips; compiling takes its own. The folder must hold the video VAE."""
    pools = _pools(plan, presenter, device, log, seconds)
    compiled = plan.compiled and device.type == "cuda" and _compiles(plan, pools[0], presenter, device, log)
    return Prepared(pools=pools, presenter=presenter, device=device, compiled=compiled)


def _pools(plan: RunPlan, presenter: Presenter, device: torch.device, log: Log, seconds: float) -> list[Pool]:
    begin = time.perf_counter()
    wanted = PoolPlan(
        canvases=plan.canvases,
        shares=CANVAS_SHARES[: len(plan.canvases)],
        clips=plan.clips,
        seconds=seconds,
        chunk=1 if plan.toy else 96,
        seed=plan.pool_seed,
    )
    video = open_video_codec(plan.sizes, plan.folder, device)
    pools = fill_pools(wanted, video, audio_scale(device), presenter, device)
    log.write(done="pools", clips=[pool.count for pool in pools], seconds=time.perf_counter() - begin)
    return pools


def _compiles(plan: RunPlan, pool: Pool, presenter: Presenter, device: torch.device, log: Log) -> bool:
    """Whether the compiled block works here; a run must not be lost to a compiler."""
    begin = time.perf_counter()
    try:
        model, _ = open_model(plan.sizes, presenter, None, device, compiled=True)
        laying = Laying(presenter, model.facts, device, model.denoiser.dtype)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            drawn = laying.draw(pool, Task.T2VA, plan.batch, generator)
            loss, _parts = flow_loss(model, laying.example(pool, Task.T2VA, *drawn))
            loss.backward()
        torch.cuda.synchronize()
    except Exception:
        log.write(compiled=False, error=traceback.format_exc(limit=3)[-600:])
        return False
    log.write(compiled=True, seconds=time.perf_counter() - begin)
    return True
