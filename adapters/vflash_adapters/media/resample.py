"""Resampling of reference sound, bit for bit what the released model's preparation gives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vflash_ports.errors import MediaError

if TYPE_CHECKING:
    import torch

# A windowed sinc of six zero crossings a side, cut at 0.99 of the lower Nyquist rate, under a Hann window:
# torchaudio.transforms.Resample with its defaults.
ZERO_CROSSINGS = 6
ROLLOFF = 0.99
MAX_KERNEL_VALUES = 1 << 24


def resample(waveform: torch.Tensor, source_hz: int, target_hz: int) -> torch.Tensor:
    """float32 [channels, n] at `source_hz` -> float32 [channels, ceil(n * target / source)] at `target_hz`."""
    import torch
    from torch.nn import functional as F

    if source_hz == target_hz:
        return waveform
    divisor = math.gcd(source_hz, target_hz)
    source, target = source_hz // divisor, target_hz // divisor
    kernels, width = _kernels(source, target, source_hz)
    padded = F.pad(waveform, (width, width + source))
    phases = F.conv1d(padded[:, None], kernels, stride=source)
    samples = phases.transpose(1, 2).reshape(waveform.shape[0], -1)
    # The count is rounded to float32 before the ceiling, which decides the last sample of long sounds.
    count = int(torch.tensor(target * waveform.shape[1] / source).ceil())
    return samples[:, :count].contiguous()


def _kernels(source: int, target: int, source_hz: int) -> tuple[torch.Tensor, int]:
    """One filter for each output phase, [target, 1, taps] float32, and the samples each reaches back."""
    import torch

    cutoff = min(source, target) * ROLLOFF
    width = math.ceil(ZERO_CROSSINGS * source / cutoff)
    if target * (2 * width + source) > MAX_KERNEL_VALUES:
        raise MediaError(f"sound at {source_hz} Hz has no short ratio to the model's rate: convert it to 48000 Hz")
    taps = torch.arange(-width, width + source, dtype=torch.float64) / source
    # The phase is formed in float32 there: up to 3e-5 of the waveform hangs on it.
    phase = torch.arange(target).to(torch.float32) / target
    time = ((taps - phase[:, None].to(torch.float64)) * cutoff).clamp(-ZERO_CROSSINGS, ZERO_CROSSINGS)
    window = torch.cos(time * (math.pi / ZERO_CROSSINGS / 2)).square()
    return (torch.sinc(time) * window * (cutoff / source)).to(torch.float32)[:, None], width
