"""How the video VAE's decoder runs, by name."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import torch
from attrs import evolve

from vflash_adapters.block_kernels.device_default import default_block_kernels
from vflash_adapters.latent_codec.decode_windows import DecodeTiles, own_decoder
from vflash_adapters.latent_codec.decoder_kernels import DecoderKernels, head_norm_rope, scaled_residual_norm
from vflash_adapters.latent_codec.decoder_linears import dense_linear, fp8_linear
from vflash_adapters.latent_codec.tile_attention import check_tile_attention, tile_attention
from vflash_adapters.latent_codec.vit_decoder import VitDecoder
from vflash_adapters.linear.fp8 import default_row_kernels
from vflash_adapters.linear.row_fp8 import ADMITTED_CAPABILITIES, SCALED_GEMM_ALIGNMENT, admits
from vflash_ports.errors import UnsupportedError


class VideoDecoder(StrEnum):
    """`diffusers` calls the VAE's own decoder; `fused` runs the same layers on fused kernels; `fused-fp8` multiplies
    in FP8 as well (W8A8), which is approximate."""

    DIFFUSERS = "diffusers"
    FUSED = "fused"
    FUSED_FP8 = "fused-fp8"


def check_video_decoder(
    decoder: VideoDecoder, config: Mapping[str, Any], *, device: torch.device, dtype: torch.dtype
) -> None:
    """Raises `UnsupportedError`, with the cure, if `decoder` cannot run a VAE of this `config` here; loads nothing."""
    if decoder is VideoDecoder.DIFFUSERS:
        return
    default_block_kernels(device)  # refuses where Triton is needed and missing
    check_tile_attention(device, dtype, _head_dim(config))  # and where it is too old, or its kernel wrong
    if decoder is VideoDecoder.FUSED_FP8:
        _check_fp8(config, device, dtype)


def tile_decoder(vae: Any, decoder: VideoDecoder, device: torch.device, *, fp8_fast_accum: bool = False) -> DecodeTiles:
    """Made for one clip; weights are quantised here."""
    if decoder is VideoDecoder.DIFFUSERS:
        return own_decoder(vae)
    kernels = fused_kernels(vae, device)
    return VitDecoder(vae, kernels if decoder is VideoDecoder.FUSED else in_fp8(kernels, device, fp8_fast_accum))


def fused_kernels(vae: Any, device: torch.device) -> DecoderKernels:
    """For `vae`: Triton on CUDA, torch elsewhere; attention is exact everywhere."""
    block = default_block_kernels(device)
    attention = tile_attention(device, vae.decoder.proj_out.weight.dtype, _head_dim(vae.config))
    if device.type != "cuda":
        return DecoderKernels(
            block=block,
            residual_norm=scaled_residual_norm,
            head_norm_rope=head_norm_rope,
            attention=attention,
            linear=dense_linear,
        )
    from vflash_adapters.latent_codec.triton_head_norm_rope import triton_head_norm_rope
    from vflash_adapters.latent_codec.triton_residual_norm import triton_residual_norm

    return DecoderKernels(
        block=block,
        residual_norm=triton_residual_norm,
        head_norm_rope=triton_head_norm_rope,
        attention=attention,
        linear=dense_linear,
    )


def in_fp8(kernels: DecoderKernels, device: torch.device, fast_accum: bool) -> DecoderKernels:
    """The same, with W8A8 linears."""
    row_kernels = default_row_kernels("auto", device)
    return evolve(kernels, linear=fp8_linear(row_kernels=row_kernels, fast_accum=fast_accum))


def _check_fp8(config: Mapping[str, Any], device: torch.device, dtype: torch.dtype) -> None:
    what, cure = "video decoder 'fused-fp8'", "choose video decoder 'fused' or 'diffusers'"
    if dtype != torch.bfloat16:
        raise UnsupportedError(f"{what} runs in bfloat16, not {dtype}: choose dtype bfloat16, or {cure}")
    if not admits(device):
        admitted = " and ".join(f"{major}.{minor}" for major, minor in ADMITTED_CAPABILITIES)
        raise UnsupportedError(f"{what} is admitted on compute capability {admitted}, not on {device}: {cure}")
    width = config.get("decoder_num_attention_heads", 32) * _head_dim(config)
    if width % SCALED_GEMM_ALIGNMENT:
        raise UnsupportedError(
            f"{what} needs a decoder whose width is a multiple of {SCALED_GEMM_ALIGNMENT}, not {width}: {cure}"
        )


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("decoder_attention_head_dim", 64))
