"""Media made for the tests with PyAV, so that every frame's time and brightness is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

VideoWriter = Callable[..., Path]
SoundWriter = Callable[..., Path]
LEVELS = 16  # brightness steps: frame k is painted 8 + 15 * (k % 16), far apart for any codec


def paint(index: int, width: int, height: int) -> np.ndarray:
    return np.full((height, width, 3), 8 + 15 * (index % LEVELS), dtype=np.uint8)


@pytest.fixture
def write_video(tmp_path: Path) -> VideoWriter:
    """Frames painted by their index, at explicit ticks of `time_base`, with optional stereo or mono sound."""

    def write(
        name: str,
        ticks: Sequence[int],
        *,
        rate: Fraction = Fraction(24),
        time_base: Fraction | None = None,
        size: tuple[int, int] = (64, 48),
        frames: Sequence[np.ndarray] | None = None,
        sound: np.ndarray | None = None,
        sound_rate_hz: int = 32000,
    ) -> Path:
        path = tmp_path / name
        with av.open(str(path), "w") as container:
            stream = container.add_stream("mpeg4", rate=rate)
            stream.width, stream.height, stream.pix_fmt = size[0], size[1], "yuv420p"
            stream.codec_context.time_base = time_base or 1 / rate
            stream.options = {"qscale": "1"}
            stream.bit_rate = 4_000_000
            heard = None if sound is None else _sound_stream(container, sound, sound_rate_hz, "pcm_s16le", name)
            for index, tick in enumerate(ticks):
                pixels = paint(index, *size) if frames is None else frames[index]
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                frame.pts, frame.time_base = tick, stream.codec_context.time_base
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
            if heard is not None:
                _mux_sound(container, heard, sound, sound_rate_hz)
        return path

    return write


@pytest.fixture
def write_sound(tmp_path: Path) -> SoundWriter:
    """A waveform [channels, n] in [-1, 1] in the container and codec that the name asks for."""

    def write(name: str, waveform: np.ndarray, rate_hz: int, codec: str = "pcm_s16le") -> Path:
        path = tmp_path / name
        with av.open(str(path), "w") as container:
            stream = _sound_stream(container, waveform, rate_hz, codec, name)
            _mux_sound(container, stream, waveform, rate_hz)
        return path

    return write


def _sound_stream(
    container: av.container.OutputContainer, waveform: np.ndarray, rate_hz: int, codec: str, name: str
) -> av.AudioStream:
    if codec == "pcm_s16le" and name.endswith((".mp4", ".mov")):
        codec = "aac"
    layouts = {1: "mono", 2: "stereo", 6: "5.1"}
    return container.add_stream(codec, rate=rate_hz, layout=layouts[waveform.shape[0]])


def _mux_sound(
    container: av.container.OutputContainer, stream: av.AudioStream, waveform: np.ndarray, rate_hz: int
) -> None:
    frame = av.AudioFrame.from_ndarray(
        np.ascontiguousarray(waveform.astype(np.float32)), format="fltp", layout=stream.layout.name
    )
    frame.sample_rate, frame.pts, frame.time_base = rate_hz, 0, Fraction(1, rate_hz)
    fifo = av.AudioFifo()
    fifo.write(frame)
    resampler = av.AudioResampler(format=stream.format, layout=stream.layout, rate=rate_hz)
    size = stream.codec_context.frame_size or 1024
    while (part := fifo.read(size, partial=True)) is not None:
        for ready in resampler.resample(part):
            container.mux(stream.encode(ready))
    container.mux(stream.encode(None))
