"""Audio delivery profiles: the decoded sound as it is, levelled for the web, or true silence on the same clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from vflash.domain.delivery import AudioDelivery
from vflash.stages.loudness import decibels, finite, integrated_lufs, magnitude, measure_loudness, true_peaks
from vflash_ports.errors import NonFiniteError

WEB_TARGET_LUFS = -18.0
WEB_CEILING_DBTP = -2.0
WEB_MAX_GAIN_DB = 18.0
WEB_QUIET_LUFS = -55.0
LIMITER_REACH_S = 0.005


def deliver_audio(
    decode: Callable[[], torch.Tensor], *, samples: int, sample_rate_hz: int, profile: AudioDelivery
) -> tuple[torch.Tensor, dict[str, Any]]:
    """float32 stereo [2, samples] and what was done to it, for the receipt.

    `decode` gives the decoded waveform [2, >= samples]; `silent-v1` never calls it. `NonFiniteError` for NaN in it.
    """
    if profile is AudioDelivery.SILENT_V1:
        return torch.zeros((2, samples)), {"profile": profile.value, "status": "silent"}
    waveform = decode()[:, :samples]
    if not bool(waveform.isfinite().all()):
        raise NonFiniteError("the decoded waveform holds NaN or infinity; silent-v1 delivers without it")
    if profile is AudioDelivery.UNCHANGED:
        return waveform, {"profile": profile.value, "status": "unchanged"}
    levelled, report = web_levelled(waveform, sample_rate_hz)
    return levelled, {"profile": profile.value, **report}


def web_levelled(waveform: torch.Tensor, sample_rate_hz: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """One gain toward -18 LUFS (at most +18 dB); a limiter only if the result would pass -2 dBTP.

    Sound under -55 LUFS is left alone (`quiet_bypass`): raising it would deliver the decoder's noise.
    """
    before = measure_loudness(waveform, sample_rate_hz)
    measured = {"input_lufs": finite(before.integrated_lufs), "input_dbtp": finite(before.true_peak_dbtp)}
    if before.integrated_lufs < WEB_QUIET_LUFS:
        return waveform, {"status": "quiet_bypass", "mode": "none", "gain_db": 0.0, **measured}
    gain_db = min(WEB_TARGET_LUFS - before.integrated_lufs, WEB_MAX_GAIN_DB)
    raised = waveform * magnitude(gain_db)
    limited = before.true_peak_dbtp + gain_db > WEB_CEILING_DBTP
    if limited:
        raised = _limit(raised, magnitude(WEB_CEILING_DBTP), round(LIMITER_REACH_S * sample_rate_hz))
    return raised, {
        "status": "normalized",
        "mode": "limited" if limited else "linear",
        "gain_db": gain_db,
        **measured,
        "output_lufs": finite(integrated_lufs(raised, sample_rate_hz)),
        "output_dbtp": finite(decibels(float(true_peaks(raised).max()))),
    }


def _limit(waveform: torch.Tensor, ceiling: float, reach: int) -> torch.Tensor:
    """Both channels turned down together, `reach` samples ahead of each peak and after it, without a step.

    The smallest needed gain within reach, averaged over the reach, is never above the gain needed at any sample.
    """
    needed = (ceiling / true_peaks(waveform).clamp_min(ceiling)).view(1, 1, -1)
    window = 2 * reach + 1
    least = -F.max_pool1d(-needed, window, stride=1, padding=reach)
    gain = F.avg_pool1d(F.pad(least, (reach, reach), mode="replicate"), window, stride=1)[0]
    limited = (waveform * gain).to(torch.float32)
    # Turning down is itself a modulation: what it left above the ceiling between samples is taken off the whole.
    excess = float(true_peaks(limited).max()) / ceiling
    return limited / excess if excess > 1 else limited
