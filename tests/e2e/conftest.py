"""What the whole-request tests share: pipelines on the small checkpoint, and files to feed them."""

from __future__ import annotations

import wave
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from dependency_injector import providers
from fakes import FlatCodecs
from PIL import Image
from recording import RecordingSink

from vflash.container import Container
from vflash.engine import Engine
from vflash.pipeline import H3Pipeline, VideoRequest
from vflash.settings import Settings

Make = Callable[..., Engine]


def ask(prompt: str = "A red fox runs.", **fields: Any) -> VideoRequest:
    """A small request: two evaluations on 96 x 64."""
    return VideoRequest(prompt=prompt, **{"width": 96, "height": 64, "steps": 2, **fields})


@pytest.fixture(name="ask", scope="session")
def ask_fixture() -> Callable[..., VideoRequest]:
    return ask


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoints: Mapping[str, Path]) -> Path:
    return tiny_checkpoints["small"]


@pytest.fixture
def make(checkpoint: Path) -> Iterator[Make]:
    """An engine with the real encoder and denoiser, a flat codec and a recording sink unless others are given.

    `make(sink=FramesDirSink(), dtype="bfloat16")`: adapters by their container's name, plain values are settings.
    """
    with ExitStack() as opened:

        def build(model_dir: Path = checkpoint, *, real: bool = False, **options: Any) -> Engine:
            swaps = {name: value for name, value in options.items() if not isinstance(value, str | int)}
            chosen = {name: value for name, value in options.items() if name not in swaps}
            settings = {"device": "cpu", "dtype": "float32", **chosen}
            container = Container(settings=Settings(model_dir=model_dir, **settings))
            if not real:
                swaps = {"latent_codec": FlatCodecs(), "sink": RecordingSink(), **swaps}
            for name, adapter in swaps.items():
                getattr(container, name).override(providers.Object(adapter))
            return opened.enter_context(container.pipeline())

        yield build


@pytest.fixture(scope="module")
def pipeline(checkpoint: Path) -> Iterator[H3Pipeline]:
    """One real pipeline, as a user builds it, for all tests of a module that leave it healthy."""
    with H3Pipeline(checkpoint, device="cpu", dtype="float32") as opened:
        yield opened


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as users have them: a tilted photograph, a JPEG, lossy videos with and without sound, a WAV."""
    folder = tmp_path_factory.mktemp("media")
    noise = np.random.default_rng(1).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "first.png")
    Image.fromarray(noise[:, ::-1]).save(folder / "last.jpg")
    tilted = Image.Exif()
    tilted[0x0112] = 6
    Image.fromarray(noise).save(folder / "tilted.jpg", exif=tilted)
    _write_video(folder / "silent.mp4", noise, frames=30, rate=30)
    _write_video(folder / "loud.mp4", noise, frames=40, rate=24, sound=True)
    with wave.open(str(folder / "sound.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(22_050)
        sound.writeframes((np.sin(np.arange(22_050) / 9) * 9000).astype("<i2").tobytes())
    return folder


def _write_video(path: Path, noise: np.ndarray, *, frames: int, rate: int, sound: bool = False) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 80, 60, "yuv420p"
        heard = container.add_stream("aac", rate=32_000, layout="stereo") if sound else None
        for shift in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.roll(noise, shift, axis=1))))
        container.mux(stream.encode(None))
        if heard is not None:
            wave_form = np.sin(np.arange(frames * 32_000 // rate) / 12).astype(np.float32)
            for start in range(0, len(wave_form) - 1024, 1024):
                part = np.stack([wave_form[start : start + 1024]] * 2)
                frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="stereo")
                frame.sample_rate, frame.pts = 32_000, start
                container.mux(heard.encode(frame))
            container.mux(heard.encode(None))
