"""A random video VAE in the released precision, made on its device."""

from __future__ import annotations

from typing import Any

import torch

from vflash_adapters.latent_codec.load_vae import VIDEO_VAE

SMALL = {
    "block_out_channels": (4, 4, 4, 4, 4, 4),
    "norm_num_groups": 2,
    "layers_per_block": 1,
    "decoder_num_layers": 2,
    "decoder_num_attention_heads": 2,
    "decoder_attention_head_dim": 16,
}
"""On a CPU, to try the scripts themselves."""


def random_vae(device: torch.device) -> Any:
    """diffusers' default, which is the released size, filled on the device; BF16 but for the modules kept in FP32."""
    from diffusers import AutoencoderKLMiniMaxH3

    with device:
        make: Any = AutoencoderKLMiniMaxH3
        vae: Any = make(**({} if device.type == "cuda" else SMALL))
    for name, parameter in vae.named_parameters():
        parameter.requires_grad_(requires_grad=False)
        if name.endswith(("scale1", "scale2")):
            parameter.fill_(0.1)  # zero would switch the blocks off
        if VIDEO_VAE.float32_modules.isdisjoint(name.split(".")):
            parameter.data = parameter.data.to(torch.bfloat16)
    return vae.eval()
