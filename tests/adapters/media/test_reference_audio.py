"""Reference sound is cut at its own rate, made stereo, resampled, and starts where the recording starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from vflash_adapters.media.reference_reader import FileReferenceReader
from vflash_adapters.media.resample import resample
from vflash_ports.errors import MediaError

READER = FileReferenceReader()
SoundWriter = Callable[..., Path]


def chirp(rate_hz: int, seconds: float, channels: int) -> np.ndarray:
    time = np.arange(int(rate_hz * seconds)) / rate_hz
    voice = 0.5 * np.sin(2 * np.pi * (200 + 300 * time) * time)
    return np.stack([voice, -voice])[:channels]


@pytest.mark.parametrize(("rate_hz", "channels"), [(32000, 2), (44100, 1), (48000, 2), (16000, 1)])
def test_pcm_is_cut_widened_and_resampled(rate_hz: int, channels: int, write_sound: SoundWriter) -> None:
    """int(seconds * rate) samples are kept, mono is repeated, and one resampling follows."""
    source = chirp(rate_hz, 2.0, channels)
    path = write_sound("s.wav", source, rate_hz)
    clip = READER.audio(path, max_seconds=124 / 96, sample_rate_hz=32000)
    cut = torch.from_numpy(source[:, : int(124 / 96 * rate_hz)].astype(np.float32)).expand(2, -1)
    wanted = resample(cut.contiguous(), rate_hz, 32000)
    assert clip.frames is None
    assert clip.waveform is not None
    assert clip.waveform.shape == wanted.shape
    assert float((clip.waveform - wanted).abs().max()) < 1e-4  # 16-bit storage


@pytest.mark.parametrize(
    ("name", "codec"),
    [("s.mp3", "libmp3lame"), ("s.m4a", "aac"), ("s.flac", "flac"), ("s.ogg", "libopus"), ("s.webm", "libopus")],
)
def test_encoder_priming_is_not_heard(name: str, codec: str, write_sound: SoundWriter) -> None:
    """The best alignment of what is read with what was recorded is at lag 0, within a sample."""
    source = chirp(48000, 1.0, 2)
    clip = READER.audio(write_sound(name, source, 48000, codec), max_seconds=1.0, sample_rate_hz=48000)
    assert clip.waveform is not None
    assert abs(clip.waveform.shape[1] - 48000) < 1200
    heard = clip.waveform[0, 2000:40000].double().numpy()
    errors = {lag: np.abs(heard - source[0, 2000 + lag : 40000 + lag]).mean() for lag in range(-1500, 1501)}
    assert abs(min(errors, key=errors.__getitem__)) <= 1


def test_a_late_soundtrack_stays_in_step(tmp_path: Path) -> None:
    """Sound that starts half a second after the pictures is preceded by half a second of silence."""
    import av

    path = tmp_path / "late.mkv"
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg4", rate=24)
        video.width, video.height, video.pix_fmt = 32, 32, "yuv420p"
        audio = container.add_stream("pcm_s16le", rate=32000, layout="mono")
        for index in range(36):
            frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), dtype=np.uint8), format="rgb24")
            frame.pts = index
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        sound = av.AudioFrame.from_ndarray(np.full((1, 32000), 16384, dtype=np.int16), format="s16", layout="mono")
        sound.sample_rate, sound.pts, sound.time_base = 32000, 16000, Fraction(1, 32000)
        container.mux(audio.encode(sound))
        container.mux(audio.encode(None))
    clip = READER.video(path, max_frames=36, sample_rate_hz=32000)
    assert clip.waveform is not None
    assert clip.waveform.shape == (2, 48000)
    assert float(clip.waveform[:, :15900].abs().max()) == 0.0
    assert math.isclose(float(clip.waveform[0, 16100:].mean()), 0.5, abs_tol=1e-3)


def test_refusals_name_the_file_and_the_cure(write_sound: SoundWriter, tmp_path: Path) -> None:
    """Six channels, noise bytes, no samples and samples that are not numbers are each refused."""
    import av

    write_sound("six.wav", np.zeros((6, 4000)), 32000)
    (tmp_path / "noise.wav").write_bytes(bytes(range(256)) * 8)
    with av.open(str(tmp_path / "nan.wav"), "w") as container:
        stream = container.add_stream("pcm_f32le", rate=32000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.full((1, 1024), np.nan, dtype=np.float32), format="flt", layout="mono")
        frame.sample_rate = 32000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    for name, message in [("six.wav", "6 channels"), ("noise.wav", "cannot be read"), ("nan.wav", "not finite")]:
        with pytest.raises(MediaError, match=message):
            READER.audio(tmp_path / name, max_seconds=1.0, sample_rate_hz=32000)
