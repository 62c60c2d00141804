"""Loudness and true peak of a waveform after ITU-R BS.1770-4, in plain torch."""

from __future__ import annotations

import math

import torch
from attrs import frozen

SILENCE_LUFS = -math.inf
BLOCK_S, STEP_S = 0.4, 0.1
ABSOLUTE_GATE_LUFS = -70.0
RELATIVE_GATE_LU = -10.0
PEAK_OVERSAMPLING = 4
PEAK_WINDOW, PEAK_MARGIN = 1 << 17, 1 << 12  # bounded memory; the margins keep each window's ends out of it
FILTER_TAIL_S = 2.0  # the filters' responses have died out far below float precision by then

# The two stages of the K weighting as analogue prototypes, from which any rate's filters follow: the head's shelf
# (Hz, dB, Q) and the high pass (Hz, Q).
SHELF_HZ, SHELF_DB, SHELF_Q = 1681.974450955533, 3.999843853973347, 0.7071752369554196
HIGH_PASS_HZ, HIGH_PASS_Q = 38.13547087602444, 0.5003270373238773


@frozen(kw_only=True)
class Loudness:
    """`integrated_lufs` is -inf for silence or less than 0.4 s; `true_peak_dbtp` is -inf for silence."""

    integrated_lufs: float
    true_peak_dbtp: float


def measure_loudness(waveform: torch.Tensor, sample_rate_hz: int) -> Loudness:
    """float32 [channels, n], finite -> gated loudness over all of it (each channel weighs 1) and its true peak."""
    return Loudness(
        integrated_lufs=integrated_lufs(waveform, sample_rate_hz),
        true_peak_dbtp=decibels(float(true_peaks(waveform).max()) if waveform.numel() else 0.0),
    )


def levels(waveform: torch.Tensor, sample_rate_hz: int) -> tuple[float | None, float | None]:
    """(integrated LUFS, true peak dBTP) as JSON can carry them: None where silence gives minus infinity."""
    found = measure_loudness(waveform, sample_rate_hz)
    return finite(found.integrated_lufs), finite(found.true_peak_dbtp)


def finite(level: float) -> float | None:
    return level if math.isfinite(level) else None


def integrated_lufs(waveform: torch.Tensor, sample_rate_hz: int) -> float:
    """Mean power of the 0.4 s blocks (0.1 s apart) that pass both gates."""
    block, step = round(BLOCK_S * sample_rate_hz), round(STEP_S * sample_rate_hz)
    if waveform.shape[1] < block:
        return SILENCE_LUFS
    powers = k_weighted(waveform, sample_rate_hz).square().unfold(1, block, step).mean(dim=2).sum(dim=0)
    heard = powers[powers > _power(ABSOLUTE_GATE_LUFS)]
    if not heard.numel():
        return SILENCE_LUFS
    gate = _lufs(float(heard.mean())) + RELATIVE_GATE_LU
    return _lufs(float(heard[heard > _power(gate)].mean()))


def k_weighted(waveform: torch.Tensor, sample_rate_hz: int) -> torch.Tensor:
    """The waveform as the measure hears it, float64. Both recursive filters are applied as one response."""
    samples = waveform.shape[1]
    padded = samples + round(FILTER_TAIL_S * sample_rate_hz)
    spectrum = torch.fft.rfft(waveform.to(torch.float64), n=padded)
    delay = torch.exp(-2j * math.pi * torch.arange(spectrum.shape[1], dtype=torch.float64) / padded)
    for numerator, denominator in (_shelf(sample_rate_hz), _high_pass(sample_rate_hz)):
        spectrum = spectrum * (_polynomial(numerator, delay) / _polynomial(denominator, delay))
    return torch.fft.irfft(spectrum, n=padded)[:, :samples]


def true_peaks(waveform: torch.Tensor) -> torch.Tensor:
    """The largest magnitude at and after each sample, between the samples too, over all channels: float64 [n]."""
    samples = waveform.shape[1]
    windows = []
    for start in range(0, samples, PEAK_WINDOW):
        before = min(start, PEAK_MARGIN)
        window = waveform[:, start - before : start + PEAK_WINDOW + PEAK_MARGIN]
        windows.append(_interpolated_peaks(window)[before : before + min(PEAK_WINDOW, samples - start)])
    return torch.cat(windows)


def _interpolated_peaks(window: torch.Tensor) -> torch.Tensor:
    samples = window.shape[1]
    padded = 2 * samples  # so that the end does not ring into the start
    spectrum = torch.fft.rfft(window.to(torch.float64), n=padded)
    finer = torch.fft.irfft(spectrum, n=padded * PEAK_OVERSAMPLING) * PEAK_OVERSAMPLING
    between = finer[:, : samples * PEAK_OVERSAMPLING].abs().amax(dim=0)
    return between.view(samples, PEAK_OVERSAMPLING).amax(dim=1)


def decibels(magnitude: float) -> float:
    return 20 * math.log10(magnitude) if magnitude > 0 else -math.inf


def magnitude(level_db: float) -> float:
    return 10 ** (level_db / 20)


def _shelf(rate_hz: int) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    k = math.tan(math.pi * SHELF_HZ / rate_hz)
    high = magnitude(SHELF_DB)
    band = high**0.4996667741545416
    numerator = (high + band * k / SHELF_Q + k * k, 2 * (k * k - high), high - band * k / SHELF_Q + k * k)
    return numerator, (1 + k / SHELF_Q + k * k, 2 * (k * k - 1), 1 - k / SHELF_Q + k * k)


def _high_pass(rate_hz: int) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    k = math.tan(math.pi * HIGH_PASS_HZ / rate_hz)
    first = 1 + k / HIGH_PASS_Q + k * k
    # The standard's numerator is not divided by the leading coefficient; the denominator is.
    return (1.0, -2.0, 1.0), (1.0, 2 * (k * k - 1) / first, (1 - k / HIGH_PASS_Q + k * k) / first)


def _polynomial(coefficients: tuple[float, float, float], delay: torch.Tensor) -> torch.Tensor:
    return coefficients[0] + coefficients[1] * delay + coefficients[2] * delay.square()


def _lufs(power: float) -> float:
    return -0.691 + 10 * math.log10(power)


def _power(lufs: float) -> float:
    return float(10 ** ((lufs + 0.691) / 10))
