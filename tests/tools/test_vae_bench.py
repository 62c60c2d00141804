"""The figures of the video VAE's bench: differences as defined, and a floor that counts every product."""

from __future__ import annotations

import math
from time import sleep

import pytest
import torch
from attrs import evolve

import vae_bench.floor
from vae_bench.differences import differences
from vae_bench.floor import GEMMS, PASSES, BlockFloor
from vae_bench.random_vae import random_vae
from vflash_adapters.latent_codec.video_decoders import fused_kernels

CPU = torch.device("cpu")


def test_differences_are_those_of_pictures() -> None:
    """One 8-bit step everywhere is 48.13 dB in both spaces; equal pixels have no PSNR."""
    steps = torch.randint(0, 254, (1, 3, 2, 8, 8), generator=torch.Generator().manual_seed(0)).double()
    mean = torch.tensor([0.485, 0.456, 0.406]).double().view(1, 3, 1, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).double().view(1, 3, 1, 1, 1)
    expected, brighter = ((steps + more) / 255 for more in (0, 1))
    found = differences((brighter - mean) / std, (expected - mean) / std)
    assert found["psnr_db"] == pytest.approx(20 * math.log10(255), abs=1e-3)
    assert found["psnr_8bit_db"] == pytest.approx(20 * math.log10(255), abs=1e-3)
    assert (found["largest_8bit_step"], found["same_8bit_share"], found["equal"]) == (1.0, 0.0, False)
    same = differences(expected, expected)
    assert (same["psnr_db"], same["psnr_8bit_db"], same["same_8bit_share"], same["equal"]) == (None, None, 1.0, True)


def test_the_floor_counts_every_product_and_pass() -> None:
    """FLOP of the block's own weights for each kind; every part runs, and every chain is made of parts."""
    vae = random_vae(CPU)
    floor = BlockFloor(vae=vae, kernels=fused_kernels(vae, CPU), tiles=2, tokens=21, device=CPU)
    parts = floor.parts()
    block = vae.decoder.transformer_blocks[0]
    weights = sum(module.weight.numel() for module in block.modules() if isinstance(module, torch.nn.Linear))
    for kind in ("bf16", "fp8", "fp8 fast"):
        assert sum(parts[f"{kind} {name}"].work for name in GEMMS) == 2 * 42 * weights
    assert parts["attention flash"].work == 4 * 2 * 21 * 21 * 32
    assert all(name in parts for names in PASSES.values() for name in names)
    for part in parts.values():
        part.call()


def test_the_floor_takes_the_fastest_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder's own is timed beside torch's, and the report names the one that the floor ran on."""

    def slow(*parts: torch.Tensor) -> torch.Tensor:
        sleep(0.05)
        return parts[0].flatten(2).flatten(0, 1)

    monkeypatch.setattr(vae_bench.floor, "SUSTAINED_S", 0.001)
    vae = random_vae(CPU)
    kernels = evolve(fused_kernels(vae, CPU), attention=slow)
    found = BlockFloor(vae=vae, kernels=kernels, tiles=2, tokens=21, device=CPU).figures(2)
    assert found["ms"]["attention hopper"] > 50 > found["ms"]["attention flash"]
    assert found["attention"] == "attention flash"
    assert set(found["decode_seconds"]) > {"floor bf16", "floor fp8", "passes fused"}
