"""Dimensions of the trained tiny H3, by the names of its config files. `TOY` has the same geometry for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vflash_adapters.tiny_checkpoint import Dimensions

LATENT_CHANNELS = 24
AUDIO_CHANNELS = 32
PATCH = (1, 2, 2)
ACTIVE_TEXT_LAYERS = 3
"""Text layers that compute; the others are the identity, since their output projections are zero."""
PICTURE_PIXELS = (1_024, 1_024)
"""Every picture is one vision token."""

_TRANSFORMER: Mapping[str, Any] = {
    "num_attention_heads": 4,
    "attention_head_dim": 64,
    "hidden_size": 256,  # a row's 96 noise values must pass through beside the content
    "num_layers": 8,
    "num_refiner_layers": 1,
    "ffn_dim": 512,
    "in_channels": LATENT_CHANNELS,
    "audio_in_channels": AUDIO_CHANNELS,
    "patch_size": [*PATCH],
    "text_dim": 96,
    "freq_dim": 64,
    "time_embed_hidden_dim": 128,
    "time_embed_dim": 32,
    "rope_freq_dim": 8,
    "rope_theta": 10000.0,
    "norm_eps": 1e-5,
    "qk_norm_eps": 1e-5,
    "final_norm_eps": 1e-5,
}

_VAE: Mapping[str, Any] = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": LATENT_CHANNELS,
    "block_out_channels": [8, 16, 32, 64, 64, 64],
    "layers_per_block": 1,
    "spatial_downsample_factors": [2, 2, 2, 2, 1, 1],
    "temporal_downsample_factors": [1, 2, 2, 1, 1, 1],
    "norm_num_groups": 4,
    "norm_eps": 1e-6,
    "spatial_padding_mode": "reflect",
    "decoder_num_layers": 4,
    "decoder_num_attention_heads": 8,
    "decoder_attention_head_dim": 32,
    "decoder_num_register_tokens": 4,
    "decoder_ffn_mult": 2,
    "decoder_rope_theta": 100.0,
    "decoder_rope_dim_ratio": 0.75,
    "decoder_norm_eps": 1e-5,
    "clip_length": 17,
    "token_drop": 3,
}

_AUDIO_VAE: Mapping[str, Any] = {
    "encoder_dim": 8,
    "encoder_rates": [4, 5, 5, 8],
    "latent_dim": 128,
    "latent_channels": AUDIO_CHANNELS,
    "num_attention_heads": 4,
    "decoder_dim": 128,
    "decoder_rates": [8, 5, 5, 4],
    "decoder_kernel_sizes": [16, 9, 9, 8],
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3]],
    "sampling_rate": 32000,
}

_TEXT: Mapping[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 51,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "mrope_section": [6, 3, 3],
}

_VISION: Mapping[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}

_ONE_FILE = dict.fromkeys(("transformer", "transformer_ref", "vae", "text_encoder"), 1)

FULL = Dimensions(
    transformer=_TRANSFORMER,
    vae=_VAE,
    audio_vae=_AUDIO_VAE,
    text=_TEXT,
    vision=_VISION,
    picture=PICTURE_PIXELS,
    video=(4_096, 65_536),
    shards=_ONE_FILE,
)

TOY = Dimensions(
    transformer={
        **_TRANSFORMER,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "hidden_size": 32,
        "num_layers": 2,
        "ffn_dim": 48,
        "text_dim": 24,
        "freq_dim": 16,
        "time_embed_hidden_dim": 24,
        "time_embed_dim": 16,
        "rope_freq_dim": 2,
    },
    vae={
        **_VAE,
        "block_out_channels": [4, 4, 8, 8, 8, 8],
        "decoder_num_layers": 1,
        "decoder_num_attention_heads": 2,
        "decoder_attention_head_dim": 16,
    },
    audio_vae={
        **_AUDIO_VAE,
        "encoder_dim": 4,
        "latent_dim": 64,
        "num_attention_heads": 2,
        "decoder_dim": 16,
        "resblock_dilation_sizes": [[1]],
    },
    text={**_TEXT, "hidden_size": 24, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1},
    vision=_VISION,
    picture=PICTURE_PIXELS,
    video=(4_096, 65_536),
    shards=_ONE_FILE,
)
