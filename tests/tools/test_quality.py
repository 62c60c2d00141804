"""The gate: measures that are right on known clips, and a whole small run on a random checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quality import CONFIGURATIONS, EXACT, Configuration, Plan, run, table
from quality_measure import psnr_db, recorded, sound_snr_db, ssim, teacher_forced
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


def test_a_small_gate_runs(checkpoint: Path, tmp_path: Path) -> None:
    """One mode, two configurations, one prompt: every column is there, and a second run takes the clips that are."""
    plan = Plan(
        model=checkpoint,
        work=tmp_path / "work",
        settings={"device": "cpu", "dtype": "float32"},
        tasks=(Task.FL2VA,),
        configurations={
            "coarse": Configuration(steps=1, settings={"dtype": "bfloat16"}),
            EXACT: Configuration(steps=1),
        },
        prompts=1,
        forced=1,
        **SIDES,
    )
    results = run(plan)
    assert list(results[Task.FL2VA]) == [EXACT, "coarse"]
    coarse = results[Task.FL2VA]["coarse"]
    assert coarse["judged"]["first frame"]["asked"] == 1
    assert 0.0 < coarse["velocity_error"]["video"] < 0.2
    assert coarse["against_exact"]["psnr_db"] > 15
    assert "velocity_error" not in results[Task.FL2VA][EXACT]
    assert len(table(results).splitlines()) == 2 + 2
    again = run(plan)
    assert "seconds_a_clip" not in again[Task.FL2VA][EXACT]
    assert again[Task.FL2VA][EXACT]["judged"] == results[Task.FL2VA][EXACT]["judged"]


def test_every_named_configuration_is_legal(tmp_path: Path) -> None:
    """Settings know every field and value that the table names."""
    for configuration in CONFIGURATIONS.values():
        settings = Settings(model_dir=tmp_path, **configuration.settings)
        assert all(str(getattr(settings, name)) == str(value) for name, value in configuration.settings.items())
