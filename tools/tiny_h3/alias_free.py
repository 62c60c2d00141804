"""The audio decoder's alias-free activation, written so that a compiler can fuse it; the same numbers as the class's.

The class up-samples with a grouped transposed convolution, which is slow where every channel is its own group. Its
twelve-tap filter is two phases of six taps, and sums of shifted copies fuse into one kernel.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

_TAPS = 12
_PHASE = _TAPS // 2


def fuse_activations(vae: Any, *, compiled: bool) -> None:
    """Give every alias-free activation of an audio VAE the fused forward, in place."""
    run = torch.compile(alias_free_snake, dynamic=True) if compiled else alias_free_snake
    for module in vae.modules():
        if hasattr(module, "upsample") and hasattr(module, "act"):
            assert module.upsample.ratio == 2
            assert module.upsample.filter.numel() == _TAPS
            module.forward = partial(_forward, module, run)


def alias_free_snake(
    x: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """x [n, channels, T]; alpha, beta [n * channels], before exp; filters [12] -> [n * channels, T].

    One alpha for each channel of each sample: a parameter's size would be a constant to the compiler, and every number
    of channels a compilation of its own.
    """
    length = x.shape[-1]
    padded = _replicate(x.flatten(0, 1), _PHASE - 1, _PHASE - 1)
    even = sum(padded[..., 2 + m : 2 + m + length] * (2.0 * up[11 - 2 * m]) for m in range(_PHASE))
    odd = sum(padded[..., 3 + m : 3 + m + length] * (2.0 * up[10 - 2 * m]) for m in range(_PHASE))
    assert isinstance(even, torch.Tensor)
    assert isinstance(odd, torch.Tensor)
    fine = torch.stack([even, odd], dim=-1).flatten(-2)
    fine = fine + torch.sin(torch.exp(alpha)[:, None] * fine).square() / (torch.exp(beta)[:, None] + 1e-9)
    wide = _replicate(fine, _PHASE - 1, _PHASE)
    coarse = sum(wide[..., k : k + 2 * length - 1 : 2] * down[k] for k in range(_TAPS))
    assert isinstance(coarse, torch.Tensor)
    return coarse


def _forward(module: Any, run: Any, x: torch.Tensor) -> torch.Tensor:
    rows = run(
        x,
        module.act.alpha.repeat(len(x)),
        module.act.beta.repeat(len(x)),
        module.upsample.filter.flatten(),
        module.downsample.lowpass.filter.flatten(),
    )
    shaped: torch.Tensor = rows.view_as(x)
    return shaped


def _replicate(x: torch.Tensor, left: int, right: int) -> torch.Tensor:
    first, last = x[..., :1], x[..., -1:]
    return torch.cat([first.expand(*x.shape[:-1], left), x, last.expand(*x.shape[:-1], right)], dim=-1)
