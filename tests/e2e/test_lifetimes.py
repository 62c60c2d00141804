"""A pipeline kept alive: loading is paid once, and requests leave it no larger than they found it."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import psutil
import pytest
import torch
from fakes import MemoryLatentStore
from recording import RecordingSink
from safetensors.torch import load_file

from vflash.model.tables import CheckpointTables, Plans, Tables
from vflash.pipeline import ConditioningReuseScope


def resident() -> int:
    """What is really held: the C library first gives back what it keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


@pytest.mark.parametrize(
    ("residency", "placement"), [("resident", "together"), ("block-ring", "together"), ("block-ring", "swap")]
)
def test_twenty_requests_do_not_grow_the_process(make, ask, tmp_path, residency: str, placement: str) -> None:
    """After the first few, twenty more add under 1 % of resident memory; every one gives the same latents."""
    store = MemoryLatentStore()
    engine = make(latent_store=store, weight_residency=residency, model_placement=placement)

    def request(number: int) -> torch.Tensor:
        path = tmp_path / f"latents-{number}"
        engine.generate(ask(save_latents=path), tmp_path / f"{number}.mp4")
        return store.kept.pop(path).video

    first = request(0)
    for number in range(1, 5):
        request(number)
    before = resident()
    assert all(torch.equal(request(number), first) for number in range(5, 25))
    assert resident() - before < 0.01 * before


def test_loading_is_paid_once(make, ask, tmp_path: Path) -> None:
    """Later requests load nothing, whatever their seed or steps; the receipt of each says what it paid."""
    engine = make()
    paid = []
    for number, fields in enumerate(({}, {"seed": 1}, {"steps": 3})):
        stages = engine.generate(ask(**fields), tmp_path / f"{number}.mp4").stages
        paid.append(stages["initialization_seconds"])
        assert stages["request_index"] == number + 1
    assert paid[0] > 0
    assert paid[1:] == [0, 0]
    assert engine.initialization_seconds == pytest.approx(paid[0])


def test_schedules_that_alternate_are_prepared_once(make, ask, media: Path, tmp_path: Path, monkeypatch) -> None:
    """Modulation tables of short schedules are kept beside each other: going back and forth reads no projections."""
    computed: list[int] = []
    whole = CheckpointTables.__call__

    def counted(self: CheckpointTables, plans: Plans) -> Tables:
        computed.append(len(plans))
        return whole(self, plans)

    monkeypatch.setattr(CheckpointTables, "__call__", counted)
    engine = make()
    requests = [ask(), ask(first_frame=media / "first.png"), ask(steps=3)]
    for number, request in enumerate(requests * 3):
        engine.generate(request, tmp_path / f"{number}.mp4")
    assert computed == [2, 2, 3]


def test_conditioning_is_reused_only_when_asked(make, ask, tmp_path: Path) -> None:
    """A scope makes the second of two equal requests a hit with the same latents; without one nothing is kept."""
    store = MemoryLatentStore()
    engine = make(latent_store=store)
    scope = ConditioningReuseScope()

    def run(number: int, prompt: str, given: ConditioningReuseScope | None) -> tuple[str, torch.Tensor]:
        path = tmp_path / f"latents-{number}"
        request = ask(prompt, save_latents=path, seed=number % 2)
        result = engine.generate(request, tmp_path / f"{number}.mp4", conditioning_reuse_scope=given)
        return result.receipt["conditioning_reuse"], store.kept[path].video

    statuses, videos = zip(
        run(0, "A fox.", scope),
        run(1, "A fox.", scope),
        run(2, "A fox.", None),
        run(3, "A fox.", scope),
        run(4, "A dog.", scope),
        strict=True,
    )
    assert statuses == ("miss", "hit", "off", "miss", "miss")
    assert torch.equal(videos[1], videos[3])
    assert torch.equal(videos[0], videos[2])
    assert not torch.equal(videos[2], videos[4])


def test_models_that_take_turns_give_the_same_clip(make, ask, media: Path, tmp_path: Path) -> None:
    """Swapped or together, kept or released, resident or streamed: latents, frames and sound are equal bit for bit."""
    choices = [
        {},
        {"model_placement": "swap"},
        {"model_placement": "swap", "model_lifetime": "per-request", "weight_residency": "resident"},
    ]
    clips = []
    for number, choice in enumerate(choices):
        sink = RecordingSink()
        engine = make(real=True, sink=sink, **choice)
        for again in range(2):
            path = tmp_path / f"{number}-{again}"
            engine.generate(ask(first_frame=media / "first.png", save_latents=path), path.with_suffix(".mp4"))
            clips.append((load_file(path)["video_latents"], sink.frames, sink.waveform))
    assert all(torch.equal(one, first) for clip in clips for one, first in zip(clip, clips[0], strict=True))
