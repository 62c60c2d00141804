"""A pipeline on a card that is not the current one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vflash.pipeline import H3Pipeline, VideoRequest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]


@pytest.mark.parametrize("residency", ["resident", "block-ring"])
def test_the_second_card_gives_the_bits_of_the_first(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, residency: str
) -> None:
    """Equal cards, W8A8 and Triton's kernels: equal latents, and the current device is what it was."""
    found = []
    for device in ("cuda:0", "cuda:1"):
        kept = tmp_path / f"{device[-1]}.safetensors"
        request = VideoRequest(prompt="rain", width=64, height=64, steps=2, save_latents=kept)
        chosen = {"linear": "w8a8", "weight_residency": residency}
        with H3Pipeline(tiny_checkpoints["small"], device=device, **chosen) as pipeline:
            pipeline.generate(request, kept.with_suffix(".mp4"))
        found.append(load_file(kept))
    assert torch.cuda.current_device() == 0
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
