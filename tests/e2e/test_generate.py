"""From a request to an MP4 with its receipt, in every mode, through `H3Pipeline` as a user has it."""

from __future__ import annotations

import json
from pathlib import Path

import av
import pytest
import torch
from safetensors.torch import load_file

from vflash.pipeline import H3Pipeline, VideoRequest

MODES = {
    "t2va": {},
    "i2va": {"first_frame": "first.png"},
    "l2va": {"last_frame": "last.jpg"},
    "fl2va": {"first_frame": "tilted.jpg", "last_frame": "last.jpg"},
    "ref2va": {"references": ["sound.wav", "tilted.jpg", "loud.mp4", "first.png", "silent.mp4"]},
}


def inputs(mode: str, media: Path) -> dict[str, object]:
    return {
        name: [media / item for item in value] if isinstance(value, list) else media / value
        for name, value in MODES[mode].items()
    }


def latents_of(pipeline: H3Pipeline, request: VideoRequest, folder: Path) -> dict[str, torch.Tensor]:
    pipeline.generate(request, folder / f"{len(list(folder.iterdir()))}.mp4")
    assert request.save_latents is not None
    return load_file(request.save_latents)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_every_mode_delivers_an_mp4_and_its_receipt(pipeline, ask, media, tmp_path, mode):
    """H.264 and AAC of exactly 5 s, and a receipt beside it that says what ran; nothing else is left."""
    result = pipeline.generate(ask(**inputs(mode, media)), tmp_path / "clip.mp4")
    with av.open(str(result.path)) as clip:
        video, sound = clip.streams.video[0], clip.streams.audio[0]
        assert (video.codec_context.name, sound.codec_context.name) == ("h264", "aac")
        assert (video.width, video.height, video.average_rate, sound.rate) == (96, 64, 24, 32_000)
        assert sum(1 for _ in clip.decode(video)) == 120
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mp4", "clip.receipt.json"]
    assert json.loads((tmp_path / "clip.receipt.json").read_text()) == json.loads(json.dumps(result.receipt))
    assert result.receipt["mode"] == mode
    assert result.receipt["denoiser"]["component"] == ("transformer_ref" if mode == "ref2va" else "transformer")
    kinds = ["audio", "picture", "video", "picture", "video"] if mode == "ref2va" else []
    assert result.receipt["inputs"] == {
        "first_frame": mode in ("i2va", "fl2va"),
        "last_frame": mode in ("l2va", "fl2va"),
        "references": kinds,
    }


def test_the_receipt_says_what_ran(pipeline, ask, tmp_path):
    """Effective backends by name, counts, schedule, seed, sizes, memory; no prompt and no path but the clip's name."""
    asked = ask("A secret prompt.", steps=3, seed=11)
    receipt = pipeline.generate(asked, tmp_path / "clip.mp4").receipt
    assert receipt["schema_version"] == 1
    assert receipt["seed"] == 11
    assert receipt["canvas"] == {"width": 96, "height": 64}
    assert receipt["frames"] == {"modelled": 124, "delivered": 120}
    assert receipt["latents"] == {"frames": 37, "height": 4, "width": 6, "audio": 207}
    assert receipt["schedule"] == {"evaluations": 3, "video_shift": 12.0, "audio_shift": 3.0}
    backends = receipt["backends"]
    # `auto` is never reported: what it chose is.
    assert (backends["device"], backends["dtype"], backends["attention"]) == ("cpu", "float32", "sdpa")
    assert "auto" not in backends.values()
    assert receipt["attention"]["dense_calls"] == 3 * 3
    assert receipt["attention"]["sparse_calls"] == 0
    assert receipt["attention"]["exact"] is True
    assert receipt["delivery"]["frames"] == 120
    assert receipt["delivery"]["audio_samples"] == 160_000
    assert receipt["delivery"]["size_bytes"] == (tmp_path / "clip.mp4").stat().st_size
    assert receipt["memory"]["peak_rss_bytes"] > 100 << 20
    assert receipt["memory"]["peak_allocated_bytes"] is receipt["memory"]["peak_reserved_bytes"] is None
    text = json.dumps(receipt)
    assert "secret" not in text
    assert str(tmp_path) not in text


def test_stages_nest_inside_the_elapsed_time(pipeline, ask, media, tmp_path):
    """Outer stages add up to no more than the request; inner ones to no more than their outer stage."""
    result = pipeline.generate(ask(**inputs("i2va", media)), tmp_path / "clip.mp4")
    stages = result.stages
    outer = [stages[name] for name in ("input_preparation", "encoding", "denoising", "media")]
    assert sum(stage["elapsed_seconds"] for stage in outer) <= result.elapsed_seconds
    for stage in outer:
        inner = [value["elapsed_seconds"] for value in stage.values() if isinstance(value, dict)]
        assert sum(inner) <= stage["elapsed_seconds"]
    assert {"text", "conditions"} <= stages["encoding"].keys()
    assert {"load", "prepare", "evaluations"} <= stages["denoising"].keys()
    spent = stages["initialization_seconds"] + stages["request_elapsed_seconds"]
    assert spent == pytest.approx(result.elapsed_seconds)


def test_loading_is_paid_once(checkpoint, ask, tmp_path):
    """The first request pays for loading and says so; the next does not; `prepare` pays before the first."""
    with H3Pipeline(checkpoint, device="cpu", dtype="float32") as pipeline:
        assert (pipeline.initialization_seconds, pipeline.request_count) == (0.0, 0)
        first = pipeline.generate(ask(), tmp_path / "1.mp4").stages
        paid = pipeline.initialization_seconds
        second = pipeline.generate(ask(), tmp_path / "2.mp4").stages
    assert first["initialization_seconds"] == paid > 0
    assert (second["initialization_seconds"], second["session_initialization_seconds"]) == (0.0, paid)
    assert (first["request_index"], second["request_index"], pipeline.request_count) == (1, 2, 2)
    with H3Pipeline(checkpoint, device="cpu", dtype="float32") as prepared:
        prepared.prepare()
        paid = prepared.initialization_seconds
        assert paid > 0
        stages = prepared.generate(ask(), tmp_path / "3.mp4").stages
    assert (stages["initialization_seconds"], stages["request_index"]) == (0.0, 1)


def test_one_seed_is_one_clip(pipeline, ask, tmp_path):
    """The same request twice gives bit-equal latents and MP4 bytes; another seed and another prompt do not."""
    requests = {
        "again": ask(save_latents=tmp_path / "again"),
        "seed": ask(seed=1, save_latents=tmp_path / "seed"),
        "prompt": ask("Heavy rain on a tin roof.", save_latents=tmp_path / "prompt"),
    }
    base = latents_of(pipeline, ask(save_latents=tmp_path / "base"), tmp_path)
    found = {name: latents_of(pipeline, request, tmp_path) for name, request in requests.items()}
    for name in ("video_latents", "audio_latents"):
        assert torch.equal(base[name], found["again"][name])
        for other in ("seed", "prompt"):
            assert (base[name] - found[other][name]).norm() / base[name].norm() > 0.005
    assert (tmp_path / "0.mp4").read_bytes() == (tmp_path / "3.mp4").read_bytes()


def test_kept_latents_are_the_documented_file(pipeline, ask, tmp_path):
    """float32 [1, 24, T, h, w] and [2, 32, A], kept beside the clip where the request asks for it."""
    latents = latents_of(pipeline, ask(save_latents=tmp_path / "kept.safetensors"), tmp_path)
    assert {name: (tuple(value.shape), value.dtype) for name, value in latents.items()} == {
        "video_latents": ((1, 24, 37, 4, 6), torch.float32),
        "audio_latents": ((2, 32, 207), torch.float32),
    }


def test_kept_latents_decode_to_the_same_clip(pipeline, ask, tmp_path):
    """`decode` gives the bytes that `generate` gave."""
    pipeline.generate(ask(save_latents=tmp_path / "kept.safetensors"), tmp_path / "clip.mp4")
    decoded = pipeline.decode(tmp_path / "kept.safetensors", tmp_path / "again.mp4")
    assert (tmp_path / "again.mp4").read_bytes() == (tmp_path / "clip.mp4").read_bytes()
    assert (tmp_path / "kept.safetensors").exists()
    assert decoded.receipt["latents_metadata"]["steps"] == "2"
    assert decoded.receipt["delivery"]["frames"] == 120


@pytest.mark.parametrize("steps", [1, 4])
def test_progress_tells_every_unit(pipeline, ask, media, tmp_path, steps):
    """Encoding inputs, evaluations and delivered frames, each up to its total."""
    seen: list[tuple[str, int, int]] = []
    pipeline.generate(
        ask(steps=steps, **inputs("fl2va", media)),
        tmp_path / "clip.mp4",
        progress=lambda event: seen.append((event.stage, event.completed, event.total)),
    )
    assert [event for event in seen if event[0] == "encoding"] == [("encoding", 1, 3), ("encoding", 3, 3)]
    assert [event for event in seen if event[0] == "denoising"] == [("denoising", n + 1, steps) for n in range(steps)]
    assert seen[-1] == ("decoding", 120, 120)
