"""Audio delivery profiles: measured like BS.1770, levelled without passing the ceiling, silent without decoding."""

from __future__ import annotations

import math
import re
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash.domain.delivery import AudioDelivery
from vflash.stages.audio_delivery import deliver_audio, web_levelled
from vflash.stages.loudness import measure_loudness
from vflash_adapters.media.ffmpeg_binary import find_ffmpeg
from vflash_ports.errors import ContractError, NonFiniteError

RATE_HZ = 32000


def sine(hz: float, level: float, seconds: float = 3.0, rate_hz: int = RATE_HZ) -> torch.Tensor:
    time = torch.arange(int(seconds * rate_hz)) / rate_hz
    return torch.stack([level * torch.sin(2 * math.pi * hz * time)] * 2)


def bursts(level: float, seed: int) -> torch.Tensor:
    """Noise that swells and stops: loud and quiet blocks, so that both gates matter."""
    seeded = torch.Generator().manual_seed(seed)
    swell = torch.sin(2 * math.pi * 0.4 * torch.arange(2 * RATE_HZ) / RATE_HZ).clamp_min(0).square()
    return (level * torch.randn((2, 2 * RATE_HZ), generator=seeded) * swell).clamp(-1, 1)


def by_ffmpeg(waveform: torch.Tensor, rate_hz: int, folder: Path) -> tuple[float, float]:
    (folder / "sound.f32").write_bytes(waveform.T.contiguous().numpy().astype("<f4").tobytes())
    source = ["-f", "f32le", "-ar", str(rate_hz), "-ac", "2", "-i", str(folder / "sound.f32")]
    command = [find_ffmpeg(), "-hide_banner", "-nostats", *source, "-af", "ebur128=peak=true", "-f", "null", "-"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return float(re.findall(r"I:\s+(\S+) LUFS", said)[-1]), float(re.findall(r"Peak:\s+(\S+) dBFS", said)[-1])


@pytest.mark.parametrize("rate_hz", [32000, 48000])
def test_loudness_is_what_ffmpeg_measures(rate_hz: int, tmp_path: Path) -> None:
    """Within 0.1 LU of FFmpeg's ebur128 (which prints one decimal), low and high tones and gated noise alike."""
    for waveform in (sine(997, 0.3, rate_hz=rate_hz), sine(60, 0.5, rate_hz=rate_hz), bursts(0.3, 5)):
        found = measure_loudness(waveform, rate_hz)
        lufs, peak = by_ffmpeg(waveform, rate_hz, tmp_path)
        assert found.integrated_lufs == pytest.approx(lufs, abs=0.1)
        assert found.true_peak_dbtp >= peak - 0.1  # ideal interpolation finds at least the filter's peak


def test_the_standards_own_calibration() -> None:
    """A 997 Hz sine at 0 dBFS in one channel reads -3.01 LKFS at 48 kHz; two channels add 3.01 dB."""
    one = sine(997, 1.0, rate_hz=48000)
    one[1] = 0
    assert measure_loudness(one, 48000).integrated_lufs == pytest.approx(-3.01, abs=0.01)
    assert measure_loudness(sine(997, 1.0, rate_hz=48000), 48000).integrated_lufs == pytest.approx(0.0, abs=0.01)


def test_peaks_between_samples_are_seen() -> None:
    """A quarter-rate sine sampled at 45 degrees shows 0.707 at its samples and 1.0 in truth."""
    time = torch.arange(RATE_HZ, dtype=torch.float64)
    waveform = torch.sin(math.pi / 2 * time + math.pi / 4).expand(2, -1)
    assert float(waveform.abs().max()) == pytest.approx(0.7071, abs=1e-3)
    # The sudden start and end ring a little above the steady sine.
    assert 0.0 <= measure_loudness(waveform, RATE_HZ).true_peak_dbtp < 1.5


@settings(deadline=None, max_examples=12)
@given(level=st.floats(0.002, 1.0), seed=st.integers(0, 1000))
def test_web_never_passes_its_ceiling_and_reaches_its_target_when_free(level: float, seed: int) -> None:
    """Linear results stand at -18 LUFS or at the +18 dB stop; limited ones stay at or under -2 dBTP."""
    source = bursts(level, seed)
    kept = source.clone()
    levelled, report = web_levelled(source, RATE_HZ)
    assert torch.equal(source, kept)
    if report["status"] == "quiet_bypass":
        assert report["input_lufs"] is None or report["input_lufs"] < -55
        assert torch.equal(levelled, source)
        return
    after = measure_loudness(levelled, RATE_HZ)
    assert after.true_peak_dbtp <= -2.0 + 1e-3
    assert report["gain_db"] <= 18.0
    if report["mode"] == "linear" and report["gain_db"] < 18.0:
        assert after.integrated_lufs == pytest.approx(-18.0, abs=1e-3)
    if report["mode"] == "limited":
        assert after.integrated_lufs <= -18.0 + 1e-3 or report["gain_db"] == 18.0


def test_the_limiter_turns_down_without_a_step() -> None:
    """One loud click in soft sound: the gain sinks and rises over milliseconds and is 1 away from the click."""
    source = sine(300, 0.05)
    source[:, 40000:40004] = 0.9
    levelled, report = web_levelled(source, RATE_HZ)
    assert report["mode"] == "limited"
    gain = levelled[0] / (source[0] * 10 ** (report["gain_db"] / 20))
    away = (source[0].abs() > 0.01) & ((torch.arange(source.shape[1]) - 40000).abs() > 1000)
    assert float((gain[away] / gain[away].median() - 1).abs().max()) < 0.02
    assert float(levelled[:, 40000:40004].abs().max()) <= 10 ** (-2 / 20)


def test_quiet_and_silent_sound_is_left_alone() -> None:
    """Under -55 LUFS nothing is raised, digital silence included, and the report can be JSON."""
    for source in (sine(300, 0.001), torch.zeros((2, RATE_HZ)), torch.zeros((2, 100))):
        levelled, report = web_levelled(source, RATE_HZ)
        assert torch.equal(levelled, source)
        assert (report["status"], report["gain_db"]) == ("quiet_bypass", 0.0)
        assert report["input_lufs"] is None or math.isfinite(report["input_lufs"])


def test_silent_never_decodes_and_keeps_the_clock() -> None:
    """True zeros of the planned length; the decoder is not called."""

    def decode() -> torch.Tensor:
        raise AssertionError("silent-v1 must not decode")

    waveform, report = deliver_audio(decode, samples=160000, sample_rate_hz=RATE_HZ, profile=AudioDelivery.SILENT_V1)
    assert torch.equal(waveform, torch.zeros((2, 160000)))
    assert report == {"profile": "silent-v1", "status": "silent"}


def test_unchanged_only_trims() -> None:
    """The decoded samples themselves, cut to the planned count."""
    source = bursts(0.5, 1)
    waveform, report = deliver_audio(
        lambda: source, samples=1000, sample_rate_hz=RATE_HZ, profile=AudioDelivery.UNCHANGED
    )
    assert torch.equal(waveform, source[:, :1000])
    assert report == {"profile": "unchanged", "status": "unchanged"}


def test_bad_sound_and_bad_names_are_refused() -> None:
    """A waveform with NaN stops with the way out; an unknown profile lists the known ones."""
    broken = torch.full((2, 1000), math.nan)
    for profile in (AudioDelivery.UNCHANGED, AudioDelivery.WEB_V1):
        with pytest.raises(NonFiniteError, match="silent-v1"):
            deliver_audio(lambda: broken, samples=1000, sample_rate_hz=RATE_HZ, profile=profile)
    with pytest.raises(ContractError, match="silent-v1"):
        AudioDelivery("loud")
