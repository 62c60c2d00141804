"""How the video VAE's decoder runs, by name."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from vflash_adapters.block_kernels.device_default import default_block_kernels
from vflash_adapters.latent_codec.decode_windows import DecodeTiles, own_decoder
from vflash_adapters.latent_codec.vit_decoder import DecoderKernels, VitDecoder, scaled_residual_norm


class VideoDecoder(StrEnum):
    """`diffusers` calls the VAE's own decoder; `fused` runs the same layers on fused kernels."""

    DIFFUSERS = "diffusers"
    FUSED = "fused"


def tile_decoder(vae: Any, decoder: VideoDecoder, device: torch.device) -> DecodeTiles:
    """Made for one clip."""
    return own_decoder(vae) if decoder is VideoDecoder.DIFFUSERS else VitDecoder(vae, fused_kernels(device))


def fused_kernels(device: torch.device) -> DecoderKernels:
    """Triton on CUDA, torch elsewhere; attention is exact everywhere."""
    if device.type != "cuda":
        kernels = (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)
        return DecoderKernels(
            block=default_block_kernels(device), residual_norm=scaled_residual_norm, attention=kernels
        )
    block = default_block_kernels(device)
    from vflash_adapters.latent_codec.triton_residual_norm import triton_residual_norm

    # float32 decoders run where only the last of these takes them
    order = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    return DecoderKernels(block=block, residual_norm=triton_residual_norm, attention=order)
