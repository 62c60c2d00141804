"""Encode once, denoise from the bundle: the same latents as a whole request, honest times, altered bundles refused."""

from __future__ import annotations

import ctypes
import gc
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from dependency_injector import providers
from fakes import CountingAttention, FullDisk, SpoilingKernels
from safetensors.torch import load_file

from vflash.container import Container
from vflash.denoise_session import DenoiseSession
from vflash.domain.progress import PipelineProgress
from vflash.native.session import NativeEngineSession
from vflash.settings import Settings
from vflash_adapters.media.latent_store import SafetensorsLatentStore
from vflash_adapters.tiny_checkpoint import Variant, write_tiny_checkpoint
from vflash_ports.errors import (
    BusyError,
    CheckpointError,
    ClosedError,
    ContractError,
    DeliveryError,
    MediaError,
    NonFiniteError,
)

Session = Callable[..., DenoiseSession]


@pytest.fixture
def session(checkpoint: Path) -> Iterator[Session]:
    with ExitStack() as opened:

        def build(model_dir: Path = checkpoint, **options: Any) -> DenoiseSession:
            swaps = {name: value for name, value in options.items() if not isinstance(value, str | int)}
            chosen = {name: value for name, value in options.items() if name not in swaps}
            container = Container(
                settings=Settings(model_dir=model_dir, **{"device": "cpu", "dtype": "float32", **chosen})
            )
            for name, adapter in swaps.items():
                getattr(container, name).override(providers.Object(adapter))
            return opened.enter_context(container.denoise_session())

        yield build


@pytest.fixture
def bundle(make, ask, tmp_path: Path) -> Path:
    make().encode(ask(), tmp_path / "bundle")
    return tmp_path / "bundle"


def references(media: Path) -> dict[str, Any]:
    return {"references": [media / "first.png", media / "loud.mp4", media / "sound.wav"]}


@pytest.mark.parametrize("mode", ["t2va", "fl2va", "ref2va"])
@pytest.mark.parametrize("residency", ["resident", "block-ring"])
def test_latents_are_those_of_a_whole_request(make, ask, media, session, tmp_path, mode, residency):
    """Bit for bit, in every kind of mode and under both residencies; the metadata names the bundle."""
    inputs = {
        "t2va": {},
        "fl2va": {"first_frame": media / "first.png", "last_frame": media / "last.jpg"},
        "ref2va": references(media),
    }[mode]
    engine = make()
    engine.generate(ask(**inputs, save_latents=tmp_path / "whole"), tmp_path / "clip.mp4")
    sealed = engine.encode(ask(**inputs), tmp_path / "bundle")
    result = session(weight_residency=residency).generate(tmp_path / "bundle", tmp_path / "native")
    whole, native = load_file(tmp_path / "whole"), load_file(tmp_path / "native")
    assert all(torch.equal(whole[name], native[name]) for name in ("video_latents", "audio_latents"))
    assert result["generation"]["bundle_id"] == sealed.bundle_id
    assert result["runtime"]["memory"]["weight_residency"] == residency


def test_times_say_what_they_cover(session, bundle, tmp_path):
    """Loading is charged to the first request alone; a later one pays nothing and reads nothing."""
    native = session()
    first = native.generate(bundle, tmp_path / "1")
    second = native.generate(bundle, tmp_path / "2")
    one, two = first["session"], second["session"]
    assert (one["request_index"], two["request_index"]) == (1, 2)
    assert one["initialization_seconds"] == one["initialization_charged_seconds"] > 0
    assert two["initialization_seconds"] == one["initialization_seconds"]
    assert two["initialization_charged_seconds"] == 0
    for result in (first, second):
        durations = result["generation"]["stage_durations"]
        assert sum(durations.values()) <= result["session"]["request_wall_seconds"]
        assert durations["latent_export"] > 0
        assert result["generation"]["nfe"] == 2
        assert result["generation"]["denoise_profile"] is None
        assert result["generation"]["rss_bytes"] > 100 << 20
    assert json.loads(json.dumps(first)) == first


def test_prepared_sessions_charge_the_first_request(session, bundle, tmp_path):
    """Loading ahead of time is loading all the same."""
    native = session()
    native.prepare()
    paid = native.initialization_seconds
    assert paid > 0
    assert native.generate(bundle, tmp_path / "1")["session"]["initialization_charged_seconds"] == paid


def test_a_profile_comes_with_its_trace(session, bundle, tmp_path):
    """The structure in the result, the events beside the latents; same bits as without."""
    native = session()
    profiled = native.generate(bundle, tmp_path / "1.safetensors", profile_denoise=True)["generation"]
    profile = profiled["denoise_profile"]
    assert [one["profiled_blocks"] for one in profile["block_ring"]["evaluations"]] == [3, 3]
    events = json.loads((tmp_path / "1.denoise-trace.json").read_text())["traceEvents"]
    assert {"attention", "ring_copy", "progress_fence"} <= {event["name"] for event in events}
    text = json.dumps([profile, events])
    assert "fox" not in text
    assert str(tmp_path) not in text
    native.generate(bundle, tmp_path / "2.safetensors")
    one, two = (load_file(tmp_path / f"{n}.safetensors") for n in (1, 2))
    assert torch.equal(one["video_latents"], two["video_latents"])
    (tmp_path / "3.denoise-trace.json").touch()
    with pytest.raises(ContractError, match="trace"):
        native.generate(bundle, tmp_path / "3.safetensors", profile_denoise=True)


def test_what_is_not_for_this_checkpoint_is_refused(session, make, ask, bundle, tiny_checkpoints, tmp_path):
    """Another checkpoint, another dtype, an altered or missing bundle: nothing loads, and the session stays healthy."""
    other = session(tiny_checkpoints["other"])
    with pytest.raises(CheckpointError, match="another checkpoint"):
        other.generate(bundle, tmp_path / "out")
    assert other.initialization_seconds == 0
    with pytest.raises(CheckpointError, match="another dtype"):
        session(dtype="bfloat16").generate(bundle, tmp_path / "out")
    native = session()
    shutil.copytree(bundle, tmp_path / "altered")
    with (tmp_path / "altered" / "conditioning.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    for broken in (tmp_path / "altered", tmp_path / "none"):
        with pytest.raises(CheckpointError, match=broken.name):
            native.generate(broken, tmp_path / "out")
    (tmp_path / "taken").touch()
    with pytest.raises(MediaError, match="taken"):
        native.generate(bundle, tmp_path / "taken")
    assert native.initialization_seconds == 0
    native.generate(bundle, tmp_path / "out")


def test_a_failed_execution_retires_the_session(session, bundle, tmp_path):
    """NaN at the second evaluation: named, nothing written, the denoiser released, further requests refused."""
    native = session(block_kernels=SpoilingKernels(block=1, evaluation=1, blocks=3))
    with pytest.raises(NonFiniteError, match="evaluation 2 of 2, first seen in block 1"):
        native.generate(bundle, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ClosedError, match="retired"):
        native.generate(bundle, tmp_path / "out")


def test_a_bundle_that_cannot_fit_is_refused(session, bundle, tmp_path):
    """The plan speaks before anything loads."""
    native = session()
    small = session(host_memory_gib=1)
    with pytest.raises(ContractError, match=r"the host has 1\.0 GiB"):
        small.generate(bundle, tmp_path / "out")
    assert small.initialization_seconds == native.initialization_seconds == 0


def test_the_public_class_takes_settings_by_name(checkpoint, bundle, tmp_path):
    """As integrators use it; a misspelt option is refused with the near one."""
    with pytest.raises(ContractError, match="weight_residency"):
        NativeEngineSession(checkpoint, weight_residence="resident")
    with NativeEngineSession(checkpoint, device="cpu", dtype="float32", weight_residency="resident") as native:
        native.prepare()
        result = native.generate(bundle, tmp_path / "out")
        assert result["status"] == "succeeded"
        assert result["parallel"] == {"strategy": "single", "device_count": 1, "peer_device": None}
        assert native.request_count == 1
    with pytest.raises(ClosedError):
        native.generate(bundle, tmp_path / "other")


def test_commands_chain(checkpoint, tmp_path, monkeypatch, capsys):
    """encode, denoise, decode: the way from a prompt to a clip in three programs, with JSON on stdout."""
    from vflash.cli import main

    def run(*words: str) -> str:
        common = ("--model", str(checkpoint), "--device", "cpu", "--dtype", "float32")
        monkeypatch.setattr("sys.argv", ["vflash", *words, *common])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code in (0, None)
        return capsys.readouterr().out

    size = ("--width", "64", "--height", "64", "--steps", "1")
    paths = {name: str(tmp_path / name) for name in ("bundle", "latents", "clip.mp4")}
    run("encode", "--prompt", "A red fox runs.", *size, "--bundle", paths["bundle"])
    words = ("--bundle", paths["bundle"], "--output-latents", paths["latents"], "--profile-denoise", "--json")
    printed = json.loads(run("denoise", *words))
    assert printed["generation"]["denoise_profile"]["added_nfe_fences"] is False
    run("decode", "--latents", paths["latents"], "--output", paths["clip.mp4"])
    assert Path(paths["clip.mp4"]).stat().st_size > 1000


def test_latents_that_cannot_be_saved_lie_in_a_second_place(session, bundle, tmp_path, tmp_path_factory, monkeypatch):
    """They are all that a session makes: the error names the place, and they decode."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    native = session(latent_store=FullDisk(SafetensorsLatentStore(), tmp_path))
    with pytest.raises(DeliveryError, match=r"^the denoising is complete, but the latents") as caught:
        native.generate(bundle, tmp_path / "out.safetensors")
    (kept,) = temporary.glob("*/out.safetensors")
    assert str(caught.value).endswith(f"they are kept at {kept}")
    session().generate(bundle, tmp_path / "whole.safetensors")
    one, two = load_file(kept), load_file(tmp_path / "whole.safetensors")
    assert torch.equal(one["video_latents"], two["video_latents"])


class EnoughError(Exception):
    """What a caller raises to cancel."""


def at_second(progress: PipelineProgress) -> None:
    if progress.completed == 2:
        raise EnoughError


@pytest.mark.parametrize("residency", ["resident", "block-ring"])
def test_cancelling_stops_within_one_evaluation(make, ask, session, bundle, tmp_path, residency):
    """At evaluation 2 of 50 no third one begins, nothing is written, loading is charged to the request that follows,
    and its latents are those of a fresh session."""
    make().encode(ask(steps=50), tmp_path / "long")
    attention = CountingAttention()
    native = session(attention=attention, weight_residency=residency)
    with pytest.raises(EnoughError):
        native.generate(tmp_path / "long", tmp_path / "cancelled", progress_callback=at_second, profile_denoise=True)
    assert {evaluation for evaluation, _ in attention.calls} == {0, 1}
    assert {path.name for path in tmp_path.iterdir()} == {"bundle", "long"}
    times = native.generate(bundle, tmp_path / "next")["session"]
    assert times["request_index"] == 2
    assert times["initialization_charged_seconds"] == times["initialization_seconds"] > 0
    session(attention=CountingAttention()).generate(bundle, tmp_path / "fresh")
    one, two = (load_file(tmp_path / name)["video_latents"] for name in ("next", "fresh"))
    assert torch.equal(one, two)


def test_a_running_session_is_busy(session, bundle, tmp_path):
    """From its own callback neither another request, nor `prepare`, nor `close` gets in; the request is unharmed."""
    native, refused = session(), []

    def intrude(_: PipelineProgress) -> None:
        for intrusion in (lambda: native.generate(bundle, tmp_path / "other"), native.prepare, native.close):
            with pytest.raises(BusyError, match="a request is running"):
                intrusion()
            refused.append(intrusion)

    native.generate(bundle, tmp_path / "out", progress_callback=intrude)
    assert len(refused) == 6
    assert (tmp_path / "out").exists()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("residency", ["resident", "block-ring"])
def test_twenty_profiled_requests_do_not_grow_a_session(session, bundle, tmp_path, residency):
    """After the first few, twenty more add under 1 % of resident memory, their profiles included; all are equal."""
    native = session(weight_residency=residency)

    def run(number: int) -> torch.Tensor:
        native.generate(bundle, tmp_path / f"{number}.safetensors", profile_denoise=True)
        return load_file(tmp_path / f"{number}.safetensors")["video_latents"]

    first, *_ = [run(number) for number in range(5)]
    before = held()
    assert all(torch.equal(run(number), first) for number in range(5, 25))
    assert held() - before < 0.01 * before


def held() -> int:
    """Resident memory, once the C library has given back what it keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def test_an_encoder_with_other_weights_is_refused(session, bundle, tmp_path):
    """Two checkpoints of one shape: the bundle of one is none for the other, and nothing loads."""
    write_tiny_checkpoint(tmp_path / "twin", dimensions=Variant.SMALL, seed=1)
    native = session(tmp_path / "twin")
    with pytest.raises(CheckpointError, match="was encoded with another encoder"):
        native.generate(bundle, tmp_path / "out")
    assert native.initialization_seconds == 0
