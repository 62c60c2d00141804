"""The gate: measures that are right on known clips, and a whole small run on a random checkpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from quality import _check_bounds, run
from quality_configurations import CONFIGURATIONS, EXACT, Configuration, choose
from quality_measure import psnr_db, recorded, sound_snr_db, ssim, teacher_forced
from quality_reading import Reader, read
from quality_report import tables
from quality_run import Plan, settings_of
from tiny_h3.tasks import Task
from vflash.pipeline import H3Pipeline, VideoRequest
from vflash.settings import Settings
from vflash_adapters.tiny_checkpoint import write_tiny_checkpoint

SIDES = {"height": 32, "width": 64}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random") / "tiny"
    write_tiny_checkpoint(folder)
    return folder


def test_distances_of_known_clips() -> None:
    """Equal clips are at the top of every scale; a known difference has its known PSNR and SNR."""
    clip = np.random.default_rng(0).integers(0, 200, (3, 16, 24, 3), dtype=np.uint8)
    assert psnr_db(clip, clip) == 100.0
    assert ssim(clip, clip) == pytest.approx(1.0)
    assert psnr_db(clip + 10, clip) == pytest.approx(20 * np.log10(25.5))
    other = np.random.default_rng(1).integers(0, 200, clip.shape, dtype=np.uint8)
    assert ssim(other, clip) < 0.2 < ssim(clip + 10, clip)
    sound = np.random.default_rng(2).standard_normal((2, 400)).astype(np.float32)
    assert sound_snr_db(sound, sound) == 100.0
    assert sound_snr_db(1.1 * sound, sound) == pytest.approx(20.0, abs=1e-3)


def test_teacher_forcing_walks_the_exact_states(checkpoint: Path, tmp_path: Path) -> None:
    """The same model has no error at any evaluation; another precision has a small one; the class is left as it was."""
    request = VideoRequest(prompt="a red ball rises", steps=3, seed=1, **SIDES)
    before = H3Pipeline
    with H3Pipeline(checkpoint, device="cpu", dtype="float32") as exact:
        with recorded() as trajectory:
            exact.generate(request, tmp_path / "a.mp4")
        assert len(trajectory.states) == 3
        with teacher_forced(trajectory) as same:
            exact.generate(request, tmp_path / "b.mp4")
    with H3Pipeline(checkpoint, device="cpu", dtype="bfloat16") as coarse, teacher_forced(trajectory) as errors:
        coarse.generate(request, tmp_path / "c.mp4")
    assert [row["video"] for row in same] == [0.0] * 3
    assert all(0.0 < row[part] < 0.1 for row in errors for part in ("video", "audio"))
    assert H3Pipeline is before
    assert (tmp_path / "b.mp4").read_bytes() == (tmp_path / "a.mp4").read_bytes()


def small_plan(checkpoint: Path, work: Path, **changed: Any) -> Plan:
    """One mode, one prompt, one evaluation; the inexact configuration is named first."""
    fields = {
        "model": checkpoint,
        "work": work,
        "settings": {"device": "cpu", "dtype": "float32"},
        "configurations": {
            EXACT: Configuration(steps=1, tasks=["fl2va"]),
            "coarse": Configuration(steps=1, settings={"dtype": "bfloat16"}, tasks=["fl2va"]),
        },
        "prompts": 1,
        "forced": 1,
        **SIDES,
    }
    return Plan(**{**fields, **changed})


@pytest.fixture(scope="module")
def measured(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, dict[str, Any]]:
    plan = small_plan(checkpoint, tmp_path_factory.mktemp("gate") / "work")
    return plan, run(plan)


def test_a_small_gate_runs(measured: tuple[Plan, dict[str, Any]]) -> None:
    """Every column is there: judged attributes with intervals, distances, velocity errors, seconds."""
    _, results = measured
    assert list(results) == ["settings", "fl2va"]
    assert results["settings"]["coarse"]["dtype"] == "bfloat16"
    assert list(results["fl2va"]) == [EXACT, "coarse"]
    coarse = results["fl2va"]["coarse"]
    assert coarse["judged"]["first frame"]["asked"] == 1
    assert coarse["judged"]["all"]["low95"] <= coarse["judged"]["all"]["share"] <= coarse["judged"]["all"]["high95"]
    assert 0.0 < coarse["velocity_error"]["video"] < 0.2
    assert coarse["against_exact"]["psnr_db"] > 15
    assert coarse["seconds_a_clip"] > 0
    assert "velocity_error" not in results["fl2va"][EXACT]
    overall, attributes = tables({"fl2va": results["fl2va"]}).split("\n\n")
    assert len(overall.splitlines()) == len(attributes.splitlines()) == 2 + 2
    assert "first frame" in attributes.splitlines()[0]


def test_a_gate_goes_on_from_its_records(measured: tuple[Plan, dict[str, Any]]) -> None:
    """A second run makes nothing that has a record, makes again what lost it, and tells the same."""
    plan, results = measured
    clips = {path: path.stat().st_mtime_ns for path in plan.work.rglob("0.mp4")}
    assert run(plan) == results
    assert {path: path.stat().st_mtime_ns for path in plan.work.rglob("0.mp4")} == clips
    (plan.work / "fl2va" / "coarse" / "0.json").unlink()
    again = run(plan)["fl2va"]["coarse"]
    assert {key: again[key] for key in ("judged", "against_exact", "velocity_error")} == {
        key: results["fl2va"]["coarse"][key] for key in ("judged", "against_exact", "velocity_error")
    }


def test_a_work_folder_belongs_to_one_model(measured: tuple[Plan, dict[str, Any]], tmp_path: Path) -> None:
    """Other weights or another canvas must not find the first one's clips."""
    plan, _ = measured
    with pytest.raises(ValueError, match="another --work folder"):
        run(attrs.evolve(plan, width=96))
    write_tiny_checkpoint(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match="another --work folder"):
        run(attrs.evolve(plan, model=tmp_path / "other"))


def test_a_configuration_that_fails_is_noted(checkpoint: Path, tmp_path: Path) -> None:
    """The next ones go on, and the report has the traceback."""
    configurations = {
        "broken": Configuration(steps=1, settings={"adapter": "{model}/absent.safetensors"}, tasks=["t2va"]),
        EXACT: Configuration(steps=1, tasks=["t2va"]),
    }
    results = run(small_plan(checkpoint, tmp_path / "work", configurations=configurations, forced=0))
    assert list(results["t2va"]) == [EXACT]
    assert "absent.safetensors" in results["failed"]["t2va/broken"]


def test_a_late_gate_begins_nothing(checkpoint: Path, tmp_path: Path) -> None:
    """After the deadline there is a report of what there is: here nothing."""
    assert run(small_plan(checkpoint, tmp_path / "work", until=time.time() - 1)).keys() == {"settings"}


def test_workers_share_out_the_prompts(checkpoint: Path, tmp_path: Path) -> None:
    """Two processes make two clips, once each; seconds are left out, since they ran at once."""
    configurations = {EXACT: Configuration(steps=1, tasks=["t2va"])}
    plan = small_plan(
        checkpoint, tmp_path / "work", configurations=configurations, prompts=2, workers=2, reader=Reader.FFMPEG
    )
    found = run(plan)["t2va"][EXACT]
    assert found["clips"] == 2
    assert "seconds_a_clip" not in found
    assert len(list(plan.work.rglob("*-trajectory.safetensors"))) == 1


def test_both_readers_see_and_hear_the_same(measured: tuple[Plan, dict[str, Any]]) -> None:
    """FFmpeg by itself decodes what PyAV decodes, but for the encoder's padding after the sound."""
    plan, _ = measured
    first, second = (read(reader, plan.work / "fl2va" / EXACT / "0.mp4") for reader in Reader)
    assert np.array_equal(first.frames, second.frames)
    assert first.fps == second.fps
    length = second.waveform.shape[1]
    assert length == 160_000
    assert np.abs(first.waveform[:, :length] - second.waveform).max() < 1e-5


def test_configurations_are_chosen_by_name_and_mode() -> None:
    """The exact one comes first; modes add up; a mode that a configuration is not for is left out."""
    chosen = choose("turbo-4@t2va+ref2va,exact-16@t2va,turbo-4@i2va")
    assert list(chosen) == [EXACT, "turbo-4"]
    assert chosen["turbo-4"].tasks == (Task.T2VA, Task.I2VA)
    assert chosen[EXACT].tasks == (Task.T2VA,)
    assert choose("all").keys() == CONFIGURATIONS.keys()
    assert set(choose("exact-16,all@t2va")[EXACT].tasks) == set(Task)
    extra = choose("", ['mine={"steps": 3, "tasks": ["i2va"]}'])
    assert (extra["mine"].steps, extra["mine"].tasks) == (3, (Task.I2VA,))
    with pytest.raises(ValueError, match="'turbo-5' is unknown"):
        choose("turbo-5")


def test_every_named_configuration_is_legal(tmp_path: Path) -> None:
    """Settings know every field and value that the table names."""
    for configuration in CONFIGURATIONS.values():
        settings = Settings(model_dir=tmp_path, **configuration.settings)
        assert all(str(getattr(settings, name)) == str(value) for name, value in configuration.settings.items())


def test_a_gpu_runs_the_truth_in_float32() -> None:
    """Fast kernels take BF16 alone: the exact run names the plain ones, and Veda is BF16."""
    plan = Plan(
        model=Path("m"), work=Path("w"), settings={"device": "cuda:0", "dtype": "float32"}, configurations={},
        prompts=1, forced=0, **SIDES,
    )  # fmt: skip
    exact, coarse, veda = (settings_of(plan, CONFIGURATIONS[name]) for name in (EXACT, "bfloat16-16", "veda-50-16"))
    assert (exact["dtype"], exact["attention_backend"], exact["block_kernels"]) == ("float32", "naive", "torch")
    assert (coarse["dtype"], coarse.get("attention_backend")) == ("bfloat16", None)
    assert (veda["dtype"], veda["veda_predictor"]) == ("bfloat16", "m/veda-predictor.safetensors")
    on_cpu = attrs.evolve(plan, settings={"device": "cpu", "dtype": "float32"})
    assert settings_of(on_cpu, CONFIGURATIONS[EXACT]) == on_cpu.settings
    for configuration in CONFIGURATIONS.values():
        Settings(model_dir="m", **settings_of(plan, configuration))


def test_bounds_are_of_every_mode() -> None:
    """One mode below its bound, or a bounded configuration that was not measured, is an exit with its name."""
    found = {task: {EXACT: {"judged": {"all": {"share": share}}}} for task, share in (("t2va", 0.95), ("i2va", 0.8))}
    _check_bounds(found, {EXACT: 0.8})
    with pytest.raises(SystemExit, match=r"i2va exact-16: 80.0% < 90.0%"):
        _check_bounds(found, {EXACT: 0.9})
    with pytest.raises(SystemExit, match="turbo-4 was not measured"):
        _check_bounds(found, {"turbo-4": 0.5})
