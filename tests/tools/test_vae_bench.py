"""The bench's fused blocks compute what the VAE's own blocks do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from vae_bench.fused_blocks import fused_blocks
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.latent_codec.decode_windows import decode_windows
from vflash_adapters.latent_codec.load_vae import VIDEO_VAE, load_vae
from vflash_adapters.weights.mmap_source import MmapWeights


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-3)])
@pytest.mark.parametrize("variant", ["small", "other"])
def test_fused_blocks_are_the_same_function(
    tiny_checkpoints: Mapping[str, Path], variant: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Within one rounding of the dtype; when the scope ends the VAE is what it was, to the bit."""
    vae = load_vae(VIDEO_VAE, tiny_checkpoints[variant], weights=MmapWeights, device=torch.device("cpu"), dtype=dtype)
    latents = torch.randn(1, 24, 12, 4, 6, generator=torch.Generator().manual_seed(2))

    def pixels() -> torch.Tensor:
        return torch.cat(list(decode_windows(vae, latents, tiles_at_once=2)), dim=2)

    expected = pixels()
    with torch.no_grad(), fused_blocks(vae, TorchBlockKernels()):
        fused = pixels()
    assert fused.dtype is dtype
    error = float((fused.double() - expected.double()).norm() / expected.double().norm())
    assert error < tolerance
    torch.testing.assert_close(pixels(), expected, rtol=0, atol=0)
