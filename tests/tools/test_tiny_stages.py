"""The denoiser's stages beyond a toy run on a CPU: guidance taken in, a follower in a process of its own, the CLI."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from attrs import evolve

from tiny_h3 import processes
from tiny_h3.__main__ import new_parser, plan_of
from tiny_h3.denoiser_stages import FOLLOWER_SEED, refine
from tiny_h3.jobs import video_vae_job
from tiny_h3.model import open_model
from tiny_h3.plan import ENDS_WITH_VAE, Clock, RunPlan
from tiny_h3.prepare import Prepared, prepare
from tiny_h3.processes import command, end_follower, following
from tiny_h3.stage import Budget, Log, State, load_state, save_state
from tiny_h3.text import open_presenter
from tiny_h3.train_denoiser import JOINT, REFERENCE_PARTS, DenoiserJob, train_denoiser
from tiny_h3.video_vae import train_video_vae

CPU = torch.device("cpu")
STARTS_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> RunPlan:
    """A folder with a video VAE, which clips are encoded with."""
    folder = tmp_path_factory.mktemp("run")
    plan = RunPlan(folder=folder, seconds=1e6, toy=True, clips=2, batch=2, compiled=False, canvases=((32, 64),))
    train_video_vae(video_vae_job(plan, Budget(steps=1)))
    return plan


@pytest.fixture(scope="module")
def prepared(plan: RunPlan) -> Prepared:
    log = Log(path=plan.log, stage="run")
    return prepare(plan, open_presenter(plan.folder), CPU, log, seconds=60.0)


def logged(plan: RunPlan, stage: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in plan.log.read_text().splitlines()] if plan.log.exists() else []
    return [line for line in lines if line["stage"] == stage]


def values(plan: RunPlan, name: str) -> State:
    return load_state(plan.path(f"{name}.safetensors"))[0]


def distance(first: State, second: State) -> float:
    return math.sqrt(sum(float((first[name] - second[name]).square().sum()) for name in first))


def test_guidance_is_trained_into_the_weights(plan: RunPlan, prepared: Prepared) -> None:
    """With a scale other than one the guided stage moves `transformer` away from the joint state; the references' copy
    then differs from that in its own parts alone."""
    model, _ = open_model(plan.sizes, prepared.presenter, None, CPU, compiled=False)
    save_state(plan.path("joint.safetensors"), model.everything(), {"steps": 7}, torch.bfloat16)
    few = evolve(plan, steps=3)
    refine(few, Clock(plan=few, ends=ENDS_WITH_VAE), prepared, scale=2.0)
    assert [line["step"] for line in logged(plan, "guided")] == [1, 3]
    joint, base, own = (values(plan, name) for name in ("joint", "transformer", "transformer_ref"))
    assert distance(joint, base) > 0.0
    changed = {name for name in base if not torch.equal(base[name], own[name])}
    assert changed
    assert changed <= {name for name in base if any(part in name for part in REFERENCE_PARTS)}


def test_a_follower_in_its_own_process_ends_with_the_leader(plan: RunPlan, prepared: Prepared) -> None:
    """The real command begins from other weights, takes the leader's, trains until that leaves, and exits well."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    follower = subprocess.Popen(command("follow", plan, seconds=plan.seconds), env=environment)
    try:
        begin = time.perf_counter()
        while not logged(plan, "follower"):
            assert follower.poll() is None, "the follower stopped before it had clips"
            assert time.perf_counter() - begin < STARTS_WITHIN_S
            time.sleep(0.1)
        train_denoiser(leading(plan), prepared.pools, prepared.presenter, CPU)
        end_follower(follower, Log(path=plan.log, stage="follower"))
    finally:
        follower.kill()
    assert logged(plan, "follower")[-1]["exit_status"] == 0
    assert [line for line in logged(plan, "follower") if line.get("step", 0)]
    strangers = distance(fresh(plan, prepared, leading(plan).seed), fresh(plan, prepared, FOLLOWER_SEED))
    assert distance(values(plan, "leader"), values(plan, "follower")) < 0.5 * strangers


def leading(plan: RunPlan) -> DenoiserJob:
    return DenoiserJob(
        sizes=plan.sizes,
        state=plan.path("leader.safetensors"),
        log=plan.log,
        stage="denoiser",
        budget=Budget(steps=80),
        mixture=JOINT,
        batch=plan.batch,
        company=plan.folder,
    )


def fresh(plan: RunPlan, prepared: Prepared, seed: int) -> State:
    model, _ = open_model(plan.sizes, prepared.presenter, None, CPU, seed=seed, compiled=False)
    return {name: value.detach() for name, value in model.everything().items()}


@pytest.mark.parametrize("steps", [None, 3])
def test_another_process_has_the_same_plan(plan: RunPlan, steps: int | None) -> None:
    """What a command says is read back as the plan that it was made of, with the seconds it was given."""
    asked = evolve(plan, steps=steps, canvases=((96, 128), (64, 64)))
    words = command("follow", asked, seconds=40.0)
    assert words[1:4] == ["-m", "tiny_h3", "follow"]
    assert plan_of(new_parser().parse_args(words[3:])) == evolve(asked, seconds=40.0)


@pytest.mark.parametrize("word", ["100x64", "64x0", "-32x32"])
def test_a_canvas_that_no_row_fits_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Edges that 32 does not divide, and canvases of nothing, are named."""
    with pytest.raises(SystemExit):
        new_parser().parse_args(["all", f"--canvas={word}"])
    assert f"{word}: both edges must be multiples of 32, at least 32" in capsys.readouterr().err


@pytest.mark.parametrize(("seen", "second"), [(None, "1"), ("2,5", "5"), ("GPU-aa,GPU-bb,GPU-cc", "GPU-bb")])
def test_a_leader_that_fails_takes_its_follower_along(
    seen: str | None, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone at once, had the second of the GPUs that the leader sees, and found no news of an earlier run."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    said = tmp_path / "said"
    script = "import os, sys, time; open(sys.argv[1], 'w').write(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(60)"
    words = [sys.executable, "-I", "-c", script, str(said)]
    monkeypatch.setattr(processes, "command", lambda *_, **__: words)
    if seen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    for stale in ("averaging-leader.json", "averaging-follower.bin", "follower.safetensors"):
        (tmp_path / stale).write_text("old")
    left: list[subprocess.Popen[bytes]] = []

    def lead() -> None:
        with following(RunPlan(folder=tmp_path, seconds=1.0)) as follower:
            assert follower is not None
            left.append(follower)
            while not said.exists() or not said.read_text():
                time.sleep(0.02)
            raise RuntimeError("no clips")

    with pytest.raises(RuntimeError, match="no clips"):
        lead()
    assert left[0].returncode == -signal.SIGKILL
    assert said.read_text() == second
    assert list(tmp_path.iterdir()) == [said]
