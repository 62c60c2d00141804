"""What a clip sounds like, measured on a 25 ms grid: level, pitch, rhythm, place between the speakers. NumPy."""

from __future__ import annotations

import math

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from vflash_adapters.judge.blobs import Floats
from vflash_adapters.judge.description import Pitch, Rhythm

HOP_S = 0.025
PITCH_HZ = {Pitch.LOW: 240.0, Pitch.MIDDLE: 480.0, Pitch.HIGH: 960.0}
BAND_HZ = (150.0, 2300.0)
SILENCE = 3e-3
_ACTIVE = 0.2
"""A hop sounds when its level is above this share of the loud level."""


@frozen(kw_only=True, eq=False)
class Heard:
    """On hops of 25 ms [A]: `level` of both channels, `active` bool, `pan` 0 left to 1 right, `pitch_hz` (0 where not
    active). `onsets_s` when a sound starts after silence."""

    level: Floats
    active: NDArray[np.bool_]
    pan: Floats
    pitch_hz: Floats
    onsets_s: Floats
    pitch: Pitch | None
    rhythm: Rhythm | None


def hear(waveform: Floats, sample_rate_hz: int) -> Heard:
    """waveform float32 [2, n]."""
    hop = round(sample_rate_hz * HOP_S)
    count = waveform.shape[1] // hop
    channels = _band_level(waveform[:, : count * hop].reshape(2, count, hop), sample_rate_hz)
    level = np.sqrt((channels**2).sum(0))
    loud = float(np.percentile(level, 95)) if count else 0.0
    # Clicks are short: their level is the peak's, not a percentile's.
    loud = max(loud, 0.5 * float(level.max(initial=0.0)))
    active = (level > _ACTIVE * loud) & (level > SILENCE)
    pan = np.arctan2(channels[1], np.maximum(channels[0], 1e-9)) / (math.pi / 2)
    pitch_hz = np.where(active, _pitch(waveform, sample_rate_hz, hop, count), 0.0)
    onsets = _onsets(waveform, active, hop, sample_rate_hz)
    return Heard(
        level=level.astype(np.float32),
        active=active,
        pan=pan.astype(np.float32),
        pitch_hz=pitch_hz.astype(np.float32),
        onsets_s=onsets,
        pitch=_pitch_class(pitch_hz[active]),
        rhythm=_rhythm(active, onsets),
    )


def _band_level(hops: Floats, rate: int) -> Floats:
    """Root mean square of each hop within the band of the world's sounds, [2, A]: hiss outside it does not count."""
    size = hops.shape[-1]
    spectrum = np.abs(np.fft.rfft(hops.astype(np.float64), axis=-1)) ** 2
    low, high = (round(hz * size / rate) for hz in BAND_HZ)
    return np.sqrt(2.0 * spectrum[..., low:high].sum(-1)) / size


def _pitch(waveform: Floats, rate: int, hop: int, count: int) -> Floats:
    """The strongest frequency of the band around each hop, from a window of two hops."""
    if count == 0:
        return np.zeros(0, np.float32)
    mono = np.pad(waveform.sum(0), (hop // 2, 2 * hop))
    starts = np.arange(count) * hop
    windows = mono[starts[:, None] + np.arange(2 * hop)] * np.hanning(2 * hop)
    size = 8 * hop
    spectrum = np.abs(np.fft.rfft(windows, size, axis=1))
    low, high = (math.ceil(hz * size / rate) for hz in BAND_HZ)
    return ((spectrum[:, low:high].argmax(1) + low) * rate / size).astype(np.float32)


def _pitch_class(pitch_hz: Floats) -> Pitch | None:
    """By the lower end of what sounds: a gliding tone is named by the octave it starts or ends on."""
    if len(pitch_hz) == 0:
        return None
    lowest = float(np.percentile(pitch_hz, 15))
    return min(PITCH_HZ, key=lambda pitch: abs(math.log2(lowest / PITCH_HZ[pitch])))


def _onsets(waveform: Floats, active: NDArray[np.bool_], hop: int, rate: int) -> Floats:
    """To about a millisecond: the first sample of an active hop, or of the one before it, above a tenth of its peak."""
    starts = np.flatnonzero(active & ~np.concatenate([[False], active[:-1]]))
    loudest = np.abs(waveform).max(0)
    found = []
    for start in starts:
        begin, end = max(0, int(start) - 1) * hop, (int(start) + 2) * hop
        part = loudest[begin:end]
        found.append((begin + int((part > 0.1 * part.max()).argmax())) / rate)
    return np.array(found, np.float32)


def _rhythm(active: NDArray[np.bool_], onsets_s: Floats) -> Rhythm | None:
    if not active.any():
        return None
    share = float(active.mean())
    if share > 0.85:
        return Rhythm.STEADY
    if len(onsets_s) < 2:
        return None
    period = float(np.median(np.diff(onsets_s)))
    if share < 0.35 and period > 0.7:
        return Rhythm.CLICKS
    return Rhythm.FAST if period < 0.35 else Rhythm.SLOW
