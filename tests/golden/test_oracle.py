"""The oracle itself: the reference runs offline on both tiny checkpoints, in every mode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from oracle import MODES, Oracle, OracleRequest


@pytest.mark.parametrize("variant", ["small", "other"])
@pytest.mark.parametrize("mode", MODES)
def test_reference_runs(oracle: Oracle, tiny_checkpoints: Mapping[str, Path], variant: str, mode: str) -> None:
    """Every mode ends with moving pictures and sound of the delivered geometry, and N evaluations happened."""
    request, result = oracle.request(mode), oracle.mode(tiny_checkpoints[variant], mode)
    assert result.frames.shape == (124, 3, result.height, result.width)
    assert result.frames.diff(dim=0).abs().mean() > 0.01
    assert result.waveform.shape == (2, 207 * 800)
    assert result.waveform.std() > 0.01
    assert result.sample_rate_hz == 32_000
    assert len(result.video_velocities) == request.evaluations
    assert len(result.token_ids) == len(result.prompt_embeds) == len(result.text_indices)
    visual = sum(type(given).__name__ != "Sound" for given in request.references)
    keyframes = (request.first is not None) + (request.last is not None)
    assert len(result.condition_latents) == visual + keyframes
    assert (result.num_condition_video_rows > 0) == bool(result.condition_latents)
    assert (result.num_condition_audio_rows > 0) == bool(result.audio_condition_latents)


def test_prompts_and_seeds_matter(oracle: Oracle, tiny_checkpoints: Mapping[str, Path]) -> None:
    """A different prompt and a different seed each change the latents, so agreement between engines means something."""
    checkpoint = tiny_checkpoints["small"]
    base = oracle.mode(checkpoint, "t2va").latents
    for other in oracle.run_all(checkpoint, [OracleRequest(prompt="Rain on glass."), OracleRequest(seed=8)]):
        assert (other.latents - base).norm() / base.norm() > 0.005


def test_bfloat16_reference_differs_by_rounding(oracle: Oracle, tiny_checkpoints: Mapping[str, Path]) -> None:
    """The reference in BF16 stays near itself in float32, without being equal to it."""
    checkpoint = tiny_checkpoints["small"]
    exact = oracle.mode(checkpoint, "i2va")
    rounded = oracle.run(checkpoint, oracle.request("i2va"), dtype="bfloat16")
    assert rounded.prompt_embeds.dtype is torch.bfloat16
    distance = (rounded.latents - exact.latents).norm() / exact.latents.norm()
    assert 0 < distance < 0.1
