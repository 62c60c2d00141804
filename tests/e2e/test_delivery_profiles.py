"""Delivery profiles through the whole pipeline: asked in the request, done in the file, said in the receipt."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
from dependency_injector import providers
from PIL import Image

from vflash.container import Container
from vflash.pipeline import VideoRequest
from vflash.settings import Settings
from vflash_adapters.media.frames_dir import FramesDirSink
from vflash_ports.errors import ContractError


def test_exact_keyframes_and_silence(tiny_checkpoints, tmp_path: Path) -> None:
    """The first and last delivered frame are the given pictures, the sound is zeros, and kept latents decode with
    sound again."""
    noise = np.random.default_rng(4).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    for name, pixels in zip(("first.png", "last.png"), noise, strict=True):
        Image.fromarray(pixels).save(tmp_path / name)
    settings = Settings(model_dir=tiny_checkpoints["small"], device="cpu", dtype="float32")
    container = Container(settings=settings)
    container.sink.override(providers.Object(FramesDirSink()))
    request = VideoRequest(
        prompt="two pictures",
        first_frame=tmp_path / "first.png",
        last_frame=tmp_path / "last.png",
        width=64,
        height=64,
        steps=1,
        save_latents=tmp_path / "kept.safetensors",
        audio_delivery_profile="silent-v1",
        keyframe_delivery_profile="exact-v1",
    )
    with container.pipeline() as engine:
        result = engine.generate(request, tmp_path / "clip")
        again = engine.decode(tmp_path / "kept.safetensors", tmp_path / "again", audio_delivery_profile="web-v1")
    for index, pixels in ((0, noise[0]), (119, noise[1])):
        assert np.array_equal(np.asarray(Image.open(tmp_path / "clip" / f"frame-{index:05d}.png")), pixels)
    with wave.open(str(tmp_path / "clip" / "audio.wav")) as sound:
        assert set(sound.readframes(sound.getnframes())) == {0}
        assert sound.getnframes() == 160_000
    details = result.receipt["delivery"]["details"]
    assert details["audio_delivery"] == {"profile": "silent-v1", "status": "silent"}
    assert (details["keyframe_delivery"]["exact_frames"], details["keyframe_delivery"]["transition_frames"]) == (
        [0, 119],
        [1, 2, 3, 116, 117, 118],
    )
    assert again.receipt["delivery"]["details"]["audio_delivery"]["profile"] == "web-v1"
    assert again.receipt["delivery"]["details"]["keyframe_delivery"] == {"profile": "decoded"}


def test_profiles_are_checked_with_the_request() -> None:
    """exact-v1 without a keyframe and unknown names are refused before anything is read."""
    with pytest.raises(ContractError, match="needs first_frame or last_frame"):
        VideoRequest(prompt="none", keyframe_delivery_profile="exact-v1")
    with pytest.raises(ContractError, match="silent-v1"):
        VideoRequest(prompt="none", audio_delivery_profile="loud")
