"""What goes wrong is told by name, costs nothing that was paid for, and leaves a healthy pipeline healthy."""

from __future__ import annotations

import gc
import json
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes import CountingAttention, FailingSink, FlatCodecs, FullDisk, MemoryLatentStore, SpoilingKernels
from recording import RecordingSink

from vflash.model.block import BlockWeights
from vflash.pipeline import PipelineProgress
from vflash_adapters.media.latent_store import SafetensorsLatentStore
from vflash_ports.errors import (
    BusyError,
    CheckpointError,
    ClosedError,
    ContractError,
    DeliveryError,
    MediaError,
    NonFiniteError,
)


class EnoughError(Exception):
    """What a caller's own callback raises."""


def stop_at(stage: str, completed: int, error: BaseException | None = None) -> Callable[[PipelineProgress], None]:
    def callback(event: PipelineProgress) -> None:
        if event.stage == stage and event.completed >= completed:
            raise error or EnoughError

    return callback


def alive() -> int:
    """Modules and bound blocks in memory."""
    gc.collect()
    return sum(issubclass(type(item), torch.nn.Module | BlockWeights) for item in gc.get_objects())


def kept(store: MemoryLatentStore, path: Path) -> torch.Tensor:
    return store.kept[path].video


@pytest.mark.parametrize("steps", [1, 4, 50])
def test_steps_are_forwards(make, ask, tmp_path, steps):
    """N steps run every block N times, for evaluations 0 to N - 1 in order: no fencepost, and one step is legal."""
    attention = CountingAttention()
    result = make(attention=attention).generate(ask(steps=steps, width=32, height=32), tmp_path / "clip.mp4")
    assert attention.calls == [(evaluation, block) for evaluation in range(steps) for block in range(3)]
    assert result.receipt["attention"]["dense_calls"] == 3 * steps
    assert result.receipt["backends"]["attention"] == "counting"


def test_cancelling_stops_within_one_evaluation(make, ask, tmp_path):
    """At evaluation 2 of 50 no third one begins, nothing is left behind, and the next request is as on a fresh one."""
    attention, store = CountingAttention(), MemoryLatentStore()
    engine = make(attention=attention, latent_store=store)
    with pytest.raises(EnoughError):
        engine.generate(ask(steps=50), tmp_path / "clip.mp4", progress=stop_at("denoising", 2))
    assert {evaluation for evaluation, _ in attention.calls} == {0, 1}
    assert list(tmp_path.iterdir()) == []
    asked = ask(save_latents=tmp_path / "kept")
    engine.generate(asked, tmp_path / "clip.mp4")
    fresh = MemoryLatentStore()
    make(attention=CountingAttention(), latent_store=fresh).generate(asked, tmp_path / "fresh.mp4")
    assert torch.equal(kept(store, tmp_path / "kept"), kept(fresh, tmp_path / "kept"))


@pytest.mark.parametrize("stage", ["encoding", "decoding"])
@pytest.mark.parametrize("error", [EnoughError(), OSError("client is gone"), DeliveryError("mine")])
@pytest.mark.parametrize("feed", ["file", "pipe"])
def test_cancelling_elsewhere_gives_the_caller_s_own_error(make, ask, tmp_path, stage, error, feed):
    """Whatever the callback raised comes back itself, no sink wraps it, and the pipeline stays healthy."""
    engine = make(real=True, latent_codec=FlatCodecs(), media_video_input=feed)
    with pytest.raises(type(error)) as caught:
        engine.generate(ask(), tmp_path / "clip.mp4", progress=stop_at(stage, 1, error))
    assert caught.value is error
    # Once denoising is paid for its latents stay; before that nothing does.
    left = ["clip.latents.safetensors"] if stage == "decoding" else []
    assert [path.name for path in tmp_path.iterdir()] == left
    engine.prepare()


def test_bad_requests_leave_the_pipeline_healthy(make, ask, media, tmp_path):
    """One after another, each is refused by name; then a good one runs."""
    (tmp_path / "damaged.png").write_bytes((media / "first.png").read_bytes()[:300])
    (tmp_path / "text.mp4").write_text("not a video")
    (tmp_path / "taken.mp4").touch()
    (tmp_path / "noted.receipt.json").touch()
    engine = make(real=True)
    refused = [
        (ask(width=100), "new.mp4", "width must be a positive multiple of 32, got 100"),
        (ask(width=2048, height=2048, duration_s=15), "new.mp4", "joint limit"),
        (ask(first_frame=tmp_path / "none.png"), "new.mp4", "none.png does not exist"),
        (ask(first_frame=tmp_path / "damaged.png"), "new.mp4", "damaged.png is damaged"),
        (ask(references=[tmp_path / "text.mp4"]), "new.mp4", "text.mp4"),
        (ask(references=[media / "sound.wav", tmp_path / "text.mp4"]), "new.mp4", "text.mp4"),
        (ask("<Audio 1>", references=[media / "silent.mp4"]), "new.mp4", "names <Audio 1> but no such input"),
        (ask(), "taken.mp4", "taken.mp4 exists already"),
        (ask(), "noted.mp4", "noted.receipt.json exists"),
        (ask(), "new.avi", "must end in .mp4"),
        (ask(), "none/new.mp4", "none does not exist"),
        (ask(save_latents=tmp_path / "taken.mp4"), "new.mp4", "taken.mp4 exists already"),
        (ask(save_latents=tmp_path / "new.mp4"), "new.mp4", "name another file"),
        ("a prompt", "new.mp4", "request must be a VideoRequest, got str"),
    ]
    before = sorted(tmp_path.iterdir())
    for request, name, message in refused:
        with pytest.raises(ContractError) as caught:
            engine.generate(request, tmp_path / name)
        assert message in str(caught.value)
    assert engine.initialization_seconds == 0.0, "a model was loaded for a request that cannot run"
    assert sorted(tmp_path.iterdir()) == before
    assert engine.generate(ask(), tmp_path / "new.mp4").receipt["delivery"]["frames"] == 120


@pytest.mark.parametrize("output", [None, "", 5])
def test_an_output_is_a_path(make, ask, output):
    """Wrong types are refused as plainly as wrong values."""
    with pytest.raises(ContractError, match="expected a path"):
        make().generate(ask(), output)


@pytest.mark.parametrize(("block", "evaluation"), [(0, 0), (1, 1), (2, 2)])
def test_a_value_that_is_not_finite_names_evaluation_and_block(make, ask, tmp_path, block, evaluation):
    """NaN planted in one block of one evaluation stops there: no video, no latents, and the pipeline is retired."""
    attention = CountingAttention()
    kernels = SpoilingKernels(block=block, evaluation=evaluation, blocks=3)
    engine = make(block_kernels=kernels, attention=attention)
    with pytest.raises(NonFiniteError, match=f"at evaluation {evaluation + 1} of 3, first seen in block {block};"):
        engine.generate(ask(steps=3), tmp_path / "clip.mp4")
    assert max(number for number, _ in attention.calls) == evaluation
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ClosedError, match=r"retired by a failed request \(NonFiniteError"):
        engine.generate(ask(), tmp_path / "clip.mp4")


def test_a_retired_pipeline_holds_no_models(make, ask, tmp_path):
    """A failed execution gives its memory back at once, not when somebody closes it."""
    before = alive()
    engine = make(block_kernels=SpoilingKernels(block=0, evaluation=0, blocks=3))
    with pytest.raises(NonFiniteError):
        engine.generate(ask(), tmp_path / "clip.mp4")
    assert alive() == before


def test_infinity_is_found_as_nan_is(make, ask, tmp_path):
    """Not only NaN."""
    kernels = SpoilingKernels(block=1, evaluation=0, blocks=3, value=float("inf"))
    with pytest.raises(NonFiniteError, match="evaluation 1 of 2, first seen in block 1"):
        make(block_kernels=kernels).generate(ask(), tmp_path / "clip.mp4")


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), OSError("disk full"), DeliveryError("encoder died")])
def test_a_failed_delivery_keeps_the_latents(make, ask, tmp_path, error):
    """The message says where they are and how to go on; decoding them gives the clip that would have been."""
    whole = make(real=True, latent_codec=FlatCodecs())
    whole.generate(ask(), tmp_path / "whole.mp4")
    broken = make(sink=FailingSink(error))
    with pytest.raises(DeliveryError, match=str(error)) as caught:
        broken.generate(ask(), tmp_path / "clip.mp4")
    latents = tmp_path / "clip.latents.safetensors"
    assert f"--latents {latents}" in str(caught.value)
    assert not torch.is_inference_mode_enabled()
    with pytest.raises(ClosedError, match="retired"):
        broken.generate(ask(), tmp_path / "next.mp4")
    whole.decode(latents, tmp_path / "clip.mp4")
    assert (tmp_path / "clip.mp4").read_bytes() == (tmp_path / "whole.mp4").read_bytes()
    assert latents.exists()


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch) -> Path:
    """The system's temporary folder, for this test alone."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return Path(folder)


def test_latents_that_cannot_be_saved_do_not_cost_the_clip(make, ask, tmp_path, temporary):
    """They were only insurance: the clip is what it would have been, the receipt says what happened."""
    engine = make(latent_store=FullDisk(SafetensorsLatentStore(), tmp_path))
    result = engine.generate(ask(), tmp_path / "clip.mp4")
    saved = result.receipt["saved_latents"]
    assert saved["path"] is None
    assert "clip.latents.safetensors: no space left" in saved["trouble"]
    assert list(temporary.iterdir()) == []
    assert make().generate(ask(), tmp_path / "whole.mp4").receipt["saved_latents"] == {"path": None, "trouble": None}


@pytest.mark.parametrize("profile_denoise", [False, True])
def test_latents_that_were_asked_for_are_kept_elsewhere_and_told(make, ask, tmp_path, temporary, profile_denoise):
    """The clip, its receipt and its trace are complete; the error names the place; the pipeline stays healthy."""
    engine = make(latent_store=FullDisk(SafetensorsLatentStore(), tmp_path / "full"), model_lifetime="keep")
    (tmp_path / "full").mkdir()
    asked = ask(save_latents=tmp_path / "full" / "kept.safetensors")
    with pytest.raises(DeliveryError, match=r"^the video .*clip\.mp4 is complete, but the latents") as caught:
        engine.generate(asked, tmp_path / "clip.mp4", profile_denoise=profile_denoise)
    (kept,) = temporary.glob("*/kept.safetensors")
    assert str(caught.value).endswith(f"no space left; they are kept at {kept}")
    receipt = json.loads((tmp_path / "clip.receipt.json").read_text())
    assert receipt["saved_latents"]["path"] == str(kept)
    assert (tmp_path / "clip.denoise-trace.json").exists() == profile_denoise
    again = engine.decode(kept, tmp_path / "again.mp4")
    assert again.receipt["saved_latents"] == {"path": str(kept), "trouble": None}
    assert kept.exists()


def test_latents_that_cannot_be_decoded_here_are_left_for_a_larger_machine(make, ask, tmp_path):
    """The numbers and the cure before a VAE loads; latents and pipeline are as they were."""
    kept = tmp_path / "kept.safetensors"
    make().generate(ask(save_latents=kept), tmp_path / "clip.mp4")
    before = kept.read_bytes()
    engine = make(host_memory_gib=1)
    for _ in range(2):
        with pytest.raises(ContractError, match=r"^decoding \d+x\d+ does not fit: the host has 1\.0 GiB, .* needed\. "):
            engine.decode(kept, tmp_path / "again.mp4")
    assert kept.read_bytes() == before
    assert not (tmp_path / "again.mp4").exists()
    assert make().decode(kept, tmp_path / "again.mp4").receipt["saved_latents"]["path"] == str(kept)


def test_the_way_back_has_the_room_that_the_request_had(make, ask, tmp_path):
    """A machine that reads too small was told its real size: the command that decodes tells it too."""
    with pytest.raises(DeliveryError, match="encoder died") as caught:
        make(sink=FailingSink(OSError("encoder died")), host_memory_gib=64).generate(ask(), tmp_path / "clip.mp4")
    assert " --host-memory-gib 64.0 " in str(caught.value)


def test_a_failed_delivery_after_a_failed_save_names_the_second_place(make, ask, tmp_path, temporary):
    """Two faults, and the denoising is still not lost: the command decodes what lies in the second place."""
    store = FullDisk(SafetensorsLatentStore(), tmp_path)
    with pytest.raises(DeliveryError, match="encoder died") as caught:
        make(sink=FailingSink(OSError("encoder died")), latent_store=store).generate(ask(), tmp_path / "clip.mp4")
    (kept,) = temporary.glob("*/clip.latents.safetensors")
    assert f"--latents {kept}" in str(caught.value)
    assert "not where they were meant to be" in str(caught.value)
    make().decode(kept, tmp_path / "clip.mp4")


def test_latents_that_no_place_takes_are_said_to_be_lost(make, ask, tmp_path, temporary):
    """Only if the delivery fails as well; a promise that cannot be kept is not made."""
    store = FullDisk(SafetensorsLatentStore(), tmp_path, temporary)
    make(latent_store=store).generate(ask(), tmp_path / "whole.mp4")
    with pytest.raises(DeliveryError, match="encoder died") as caught:
        make(sink=FailingSink(OSError("encoder died")), latent_store=store).generate(ask(), tmp_path / "clip.mp4")
    assert "the latents are lost with this run" in str(caught.value)
    assert "--latents" not in str(caught.value)


def test_two_runs_into_one_output_both_keep_what_they_paid_for(make, ask, tmp_path, temporary):
    """The second one finds the names taken after its denoising: nothing is overwritten, its latents lie elsewhere."""

    def interfere(event: PipelineProgress) -> None:
        if event.stage == "denoising" and event.completed == 2:
            for name in ("clip.mp4", "clip.latents.safetensors"):
                (tmp_path / name).write_text("the first run's")

    engine = make(real=True, latent_codec=FlatCodecs())
    with pytest.raises(MediaError, match=r"clip\.mp4 exists already") as caught:
        engine.generate(ask(), tmp_path / "clip.mp4", progress=interfere)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"the first run's"}
    (kept,) = temporary.glob("*/clip.latents.safetensors")
    assert f"--latents {kept}" in str(caught.value)
    engine.decode(kept, tmp_path / "other.mp4")


def test_whoever_stops_a_delivery_is_told_what_is_kept(make, ask, tmp_path):
    """The caller's own exception comes back with the command as a note."""
    engine = make(real=True, latent_codec=FlatCodecs())
    with pytest.raises(EnoughError) as caught:
        engine.generate(ask(), tmp_path / "clip.mp4", progress=stop_at("decoding", 1))
    (note,) = caught.value.__notes__
    assert f"--latents {tmp_path / 'clip.latents.safetensors'}" in note


def test_an_output_that_appears_meanwhile_is_kept(make, ask, tmp_path):
    """Another program's file wins; the latents stay, and the pipeline is healthy: nothing of it failed."""
    engine = make(real=True, latent_codec=FlatCodecs())

    def interfere(event: PipelineProgress) -> None:
        if event.stage == "denoising" and event.completed == 2:
            (tmp_path / "clip.mp4").write_text("mine")

    with pytest.raises(MediaError, match=r"clip\.mp4"):
        engine.generate(ask(), tmp_path / "clip.mp4", progress=interfere)
    assert (tmp_path / "clip.mp4").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.latents.safetensors", "clip.mp4"]
    engine.decode(tmp_path / "clip.latents.safetensors", tmp_path / "other.mp4")


def test_one_request_at_a_time(make, ask, tmp_path):
    """While one runs another is busy, and closing from inside is refused; neither disturbs the running one."""
    engine = make()
    seen: list[BaseException] = []

    def attempt(action: Callable[[], object]) -> None:
        try:
            action()
        except BusyError as error:
            seen.append(error)

    def meddle(event: PipelineProgress) -> None:
        if event.stage == "denoising" and event.completed == 1:
            attempt(engine.close)
            attempt(engine.prepare)
            other = threading.Thread(target=attempt, args=[lambda: engine.generate(ask(), tmp_path / "other.mp4")])
            other.start()
            other.join()

    engine.generate(ask(), tmp_path / "clip.mp4", progress=meddle)
    assert len(seen) == 3
    assert "raise from its progress callback" in str(seen[0])
    engine.generate(ask(), tmp_path / "next.mp4")


def test_a_closed_pipeline_stays_closed(make, ask, tmp_path):
    """Closing twice is fine; using it afterwards is refused."""
    engine = make()
    engine.close()
    engine.close()
    for use in (engine.prepare, lambda: engine.generate(ask(), tmp_path / "clip.mp4")):
        with pytest.raises(ClosedError, match="closed; build a new one"):
            use()


@pytest.fixture
def copied(checkpoint, tmp_path) -> Path:
    """A checkpoint that a test may damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


def test_a_missing_shard_is_named(copied, make, ask, tmp_path):
    """The pipeline is healthy: with the file back in its place the same one runs."""
    shard = sorted((copied / "transformer").glob("*.safetensors"))[0]
    away = shard.rename(tmp_path / "away")
    engine = make(copied)
    with pytest.raises(CheckpointError, match=shard.name):
        engine.generate(ask(), tmp_path / "clip.mp4")
    away.rename(shard)
    engine.generate(ask(), tmp_path / "clip.mp4")


def test_a_leftover_of_a_download_is_named(copied, make, ask, tmp_path):
    """A checkpoint that is still being fetched is not used."""
    (copied / "transformer" / "model.safetensors.incomplete").touch()
    with pytest.raises(CheckpointError, match=r"model.safetensors.incomplete: left over from an unfinished download"):
        make(copied).generate(ask(), tmp_path / "clip.mp4")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("ffn_dim", 80, r"tensor .*ff\.net.* has shape .* its config.json says"),
        ("num_layers", 4, r"missing transformer_blocks\.3\."),
        ("num_layers", 2, r"not expected transformer_blocks\.2\."),
        ("text_dim", 48, r"tensor context_embedder\.weight has shape"),
    ],
)
def test_weights_that_do_not_match_their_config_are_named(copied, make, ask, tmp_path, field, value, message):
    """Tensor, shape and what was expected, before a single weight is read."""
    config = copied / "transformer" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {field: value}))
    with pytest.raises(CheckpointError, match=message):
        make(copied).generate(ask(), tmp_path / "clip.mp4")


def test_a_truncated_shard_is_refused(copied, make, ask, tmp_path):
    """Its header promises more bytes than there are."""
    shard = sorted((copied / "transformer").glob("*.safetensors"))[0]
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 4096)
    with pytest.raises(CheckpointError, match=shard.name):
        make(copied).generate(ask(), tmp_path / "clip.mp4")


def test_two_identical_requests_leave_nothing_behind(make, ask, tmp_path):
    """Models that are not kept are gone after each request, and both requests give the same latents."""
    store, before = MemoryLatentStore(), alive()
    engine = make(real=True, sink=RecordingSink(), latent_store=store, model_lifetime="per-request")
    for name in ("1", "2"):
        engine.generate(ask(save_latents=tmp_path / name), tmp_path / f"{name}.mp4")
        assert alive() == before
    assert torch.equal(kept(store, tmp_path / "1"), kept(store, tmp_path / "2"))
