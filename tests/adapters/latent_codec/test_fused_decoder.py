"""The fused video decoder is the VAE's own: the same layers, the same rounding, every one of them used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from vflash_adapters.latent_codec.decode_windows import decode_windows, own_decoder
from vflash_adapters.latent_codec.diffusers_vaes import DiffusersVaes
from vflash_adapters.latent_codec.load_vae import VIDEO_VAE, load_vae
from vflash_adapters.latent_codec.video_decoders import VideoDecoder, fused_kernels, tile_decoder
from vflash_adapters.latent_codec.vit_decoder import VitDecoder
from vflash_adapters.weights.mmap_source import MmapWeights

CPU = torch.device("cpu")


def video_vae(folder: Path, dtype: torch.dtype) -> Any:
    return load_vae(VIDEO_VAE, folder, weights=MmapWeights, device=CPU, dtype=dtype)


@pytest.mark.parametrize("variant", ["small", "other"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_vae_s_own_function(tiny_checkpoints: Mapping[str, Path], variant: str, dtype: torch.dtype) -> None:
    """Within 1e-6 in float32 and one rounding of BF16, on tiles that are not square; switching off any block shows."""
    vae = video_vae(tiny_checkpoints[variant], dtype)
    tiles = torch.randn(3, 24, 7, 6, 10, generator=torch.Generator().manual_seed(2)).to(dtype)

    @torch.no_grad()
    def run() -> torch.Tensor:
        return VitDecoder(vae, fused_kernels(vae, CPU))(tiles).float()

    with torch.no_grad():
        expected = own_decoder(vae)(tiles).float()
    found = run()
    assert found.shape == (3, 3, 28, 96, 160)
    assert (found - expected).norm() / expected.norm() < (1e-6 if dtype is torch.float32 else 2**-9)
    for block in vae.decoder.transformer_blocks:
        for name in ("scale1", "scale2"):
            whole = getattr(block, name).data.clone()
            getattr(block, name).data.zero_()
            assert (run() - found).norm() / found.norm() > 1e-3
            getattr(block, name).data.copy_(whole)


def test_a_whole_decode_is_the_same_clip(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Several tiles and windows through the codec: frames within 1e-5 of the VAE's own decoder."""
    latents = torch.randn(1, 24, 12, 18, 20, generator=torch.Generator().manual_seed(3))
    clips = []
    for decoder, tiles in ((VideoDecoder.DIFFUSERS, 1), (VideoDecoder.FUSED, 3)):
        provider = DiffusersVaes(weights=MmapWeights, video_decoder=decoder, tiles_at_once=tiles)
        with provider.open(tiny_checkpoints["small"], device=CPU, dtype=torch.float32) as codec:
            clips.append(torch.cat(list(codec.decode_video(latents))))
    torch.testing.assert_close(clips[0], clips[1], rtol=0, atol=1e-5)


def test_the_vae_is_left_as_it_was(tiny_checkpoints: Mapping[str, Path]) -> None:
    """The fused decoder holds copies of its own; the module runs on, bit for bit."""
    vae = video_vae(tiny_checkpoints["small"], torch.float32)
    latents = torch.randn(1, 24, 7, 4, 4, generator=torch.Generator().manual_seed(4))
    before = [clip.clone() for clip in decode_windows(vae, latents, tiles_at_once=1)]
    list(decode_windows(vae, latents, tiles_at_once=1, decode=tile_decoder(vae, VideoDecoder.FUSED, CPU)))
    after = decode_windows(vae, latents, tiles_at_once=1)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
