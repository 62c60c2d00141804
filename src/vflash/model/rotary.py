"""Rotary angles over (t, h, w): the three axes share their frequencies."""

from __future__ import annotations

import torch

from vflash.domain.model_facts import DenoiserFacts


def rotary_tables(positions: torch.Tensor, facts: DenoiserFacts) -> tuple[torch.Tensor, torch.Tensor]:
    """positions [S, 3] -> cos, sin [S, 6 * rope_freq_dim] float32, laid out for rotate-half."""
    count = facts.rope_freq_dim
    exponents = torch.arange(0, 2 * count, 2, dtype=torch.float32) / (2 * count)
    frequencies = 1.0 / (facts.rope_theta**exponents)
    angles_S3F = positions.to(torch.float32).unsqueeze(-1) * frequencies.to(positions.device)
    angles = angles_S3F.flatten(1).repeat(1, 2)
    return angles.cos(), angles.sin()
