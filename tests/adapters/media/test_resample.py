"""Reference sound is resampled exactly as the released model's preparation does it."""

from __future__ import annotations

import math

import pytest
import torch

from vflash_adapters.media.resample import resample
from vflash_ports.errors import MediaError

# torchaudio 2.11.1, transforms.Resample(rate, 32000), on the ramp below: length, then {index: value}.
GOLDEN = {
    44100: (2178, {0: -0.583895683, 1: 0.915358603, 777: 0.027786467, 1089: -0.489034832, 2177: 0.095286593}),
    48000: (2001, {0: -0.497955322, 1: 0.91282022, 777: -0.017508904, 1000: -0.427771121, 2000: 0.114603966}),
    22050: (4356, {0: -0.985212922, 1: 0.286051989, 777: -0.486568213, 2178: -0.502259731, 4355: 0.011680424}),
    8000: (12004, {0: -0.985212922, 1: -0.682511151, 777: 0.497904569, 6002: -0.47891885, 12003: 0.024161192}),
    11025: (8711, {0: -0.985212922, 1: -0.503553033, 777: 0.257665843, 4355: -0.47328487, 8710: 0.011680424}),
    96000: (1001, {0: -0.018892359, 1: 0.818650663, 777: 0.294648468, 500: -0.368592232, 1000: 0.117714077}),
}


def ramp() -> torch.Tensor:
    index = torch.arange(3001)
    return (((index * 7919) % 2001 - 1000).float() / 1000)[None]


@pytest.mark.parametrize("rate_hz", sorted(GOLDEN))
def test_values_and_lengths_are_those_of_torchaudio(rate_hz: int) -> None:
    """Within 1e-6, a float32 rounding of sums near 1; where it was run the two were bit-equal."""
    length, values = GOLDEN[rate_hz]
    resampled = resample(ramp(), rate_hz, 32000)
    assert resampled.shape == (1, length)
    assert resampled.dtype is torch.float32
    for index, value in values.items():
        assert float(resampled[0, index]) == pytest.approx(value, abs=1e-6)


def test_a_tone_keeps_its_pitch_and_level() -> None:
    """A 440 Hz tone at 44.1 kHz is a 440 Hz tone at 32 kHz, away from the ends."""
    source = torch.sin(2 * math.pi * 440 * torch.arange(44100, dtype=torch.float64) / 44100).float()[None]
    wanted = torch.sin(2 * math.pi * 440 * torch.arange(32000, dtype=torch.float64) / 32000).float()
    resampled = resample(source, 44100, 32000)[0]
    assert resampled.shape == (32000,)
    # Six zero crossings leave a passband ripple of this size.
    assert float((resampled - wanted)[200:-200].abs().max()) < 2e-3


def test_equal_rates_pass_unchanged_and_wild_ratios_are_refused() -> None:
    """No filter where none is needed; a ratio that needs a huge filter bank is refused before it is built."""
    source = ramp()
    assert resample(source, 32000, 32000) is source
    with pytest.raises(MediaError, match="48000"):
        resample(source, 44101, 32000)
