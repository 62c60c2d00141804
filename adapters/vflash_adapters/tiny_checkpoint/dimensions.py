"""Two sets of tiny dimensions that share nothing but the model's real geometry.

Both keep 16x space, 17 -> 5 time, 40 audio latents a second at 32 kHz, 24 video and 32 audio latent channels: those the
pipeline relies on. Every width, depth and head count differs between the two, so code tuned to one fails on the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from attrs import frozen

from vflash_adapters.tiny_checkpoint.tokenizer import CORPUS, MERGES

VIDEO_LATENT_CHANNELS = 24
AUDIO_LATENT_CHANNELS = 32


# Canvas rules small enough for a CPU: the release has 768, 768 * 1344 and 2048.
CANVAS = {"canvas_short_edge": 64, "canvas_max_pixels": 8192, "reference_image_short_edge": 64}


class Variant(StrEnum):
    SMALL = "small"
    OTHER = "other"


@frozen(kw_only=True)
class Dimensions:
    """Config values of each component, by the names of its own config.json.

    `text` and `vision` belong to the Qwen3-VL encoder; `picture` and `video` are the pixel budgets (smallest, largest)
    of its processors; `shards` is how many weight files the large components are cut into. `canvas` goes into the model
    index; the tokenizer learns `merges` from `corpus`.
    """

    transformer: Mapping[str, Any]
    vae: Mapping[str, Any]
    audio_vae: Mapping[str, Any]
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    picture: tuple[int, int]
    video: tuple[int, int]
    shards: Mapping[str, int]
    canvas: Mapping[str, int] = CANVAS
    corpus: tuple[str, ...] = CORPUS
    merges: int = MERGES


def dimensions_of(variant: Variant) -> Dimensions:
    return {Variant.SMALL: SMALL, Variant.OTHER: OTHER}[variant]


def _latent_statistics(channels: int, phase: float) -> dict[str, list[float]]:
    # Every channel gets its own mean and spread, so that a swapped or skipped normalisation shows.
    means = [round(0.3 * math.sin(phase + 1.7 * i), 6) for i in range(channels)]
    stds = [round(1.2 + 0.5 * math.cos(phase + 0.9 * i), 6) for i in range(channels)]
    return {"latents_mean": means, "latents_std": stds}


_VAE_GEOMETRY = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": VIDEO_LATENT_CHANNELS,
    "spatial_downsample_factors": [2, 2, 2, 2, 1, 1],
    "temporal_downsample_factors": [1, 2, 2, 1, 1, 1],
    "spatial_padding_mode": "reflect",
    "clip_length": 17,
    "token_drop": 3,
}

SMALL = Dimensions(
    transformer={
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "hidden_size": 32,
        "num_layers": 3,
        "num_refiner_layers": 2,
        "ffn_dim": 48,
        "in_channels": VIDEO_LATENT_CHANNELS,
        "audio_in_channels": AUDIO_LATENT_CHANNELS,
        "patch_size": [1, 2, 2],
        "text_dim": 32,
        "freq_dim": 32,
        "time_embed_hidden_dim": 48,
        "time_embed_dim": 24,
        "rope_freq_dim": 2,
        "rope_theta": 10000.0,
        "norm_eps": 1e-5,
        "qk_norm_eps": 1e-5,
        "final_norm_eps": 1e-5,
    },
    vae={
        **_VAE_GEOMETRY,
        "block_out_channels": [4, 4, 8, 8, 8, 16],
        "layers_per_block": 1,
        "norm_num_groups": 2,
        "norm_eps": 1e-6,
        "decoder_num_layers": 2,
        "decoder_num_attention_heads": 2,
        "decoder_attention_head_dim": 16,
        "decoder_num_register_tokens": 4,
        "decoder_ffn_mult": 2,
        "decoder_rope_theta": 100.0,
        "decoder_rope_dim_ratio": 0.75,
        "decoder_norm_eps": 1e-5,
        **_latent_statistics(VIDEO_LATENT_CHANNELS, 0.0),
    },
    audio_vae={
        "encoder_dim": 4,
        "encoder_rates": [8, 10, 10],
        "latent_dim": 64,
        "latent_channels": AUDIO_LATENT_CHANNELS,
        "num_attention_heads": 2,
        "decoder_dim": 16,
        "decoder_rates": [10, 10, 8],
        "decoder_kernel_sizes": [20, 20, 16],
        "resblock_kernel_sizes": [3],
        "resblock_dilation_sizes": [[1]],
        "sampling_rate": 32000,
        **_latent_statistics(AUDIO_LATENT_CHANNELS, 1.0),
    },
    text={
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 52,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "mrope_section": [2, 1, 1],
    },
    vision={
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1],
    },
    picture=(65_536, 16_777_216),  # the release's own
    video=(4_096, 25_165_824),
    shards={"transformer": 2, "transformer_ref": 2, "vae": 2, "text_encoder": 3},
)

OTHER = Dimensions(
    transformer={
        **SMALL.transformer,
        "num_attention_heads": 2,
        "attention_head_dim": 48,
        "hidden_size": 64,
        "num_layers": 5,
        "num_refiner_layers": 1,
        "ffn_dim": 80,
        "text_dim": 48,
        "freq_dim": 16,
        "time_embed_hidden_dim": 40,
        "time_embed_dim": 32,
        "rope_freq_dim": 6,
    },
    vae={
        **_VAE_GEOMETRY,
        "block_out_channels": [3, 6, 6, 9, 12, 12],
        "layers_per_block": 1,
        "norm_num_groups": 3,
        "norm_eps": 1e-6,
        "decoder_num_layers": 3,
        "decoder_num_attention_heads": 3,
        "decoder_attention_head_dim": 8,
        "decoder_num_register_tokens": 2,
        "decoder_ffn_mult": 1,
        "decoder_rope_theta": 50.0,
        "decoder_rope_dim_ratio": 0.75,
        "decoder_norm_eps": 1e-5,
        **_latent_statistics(VIDEO_LATENT_CHANNELS, 2.0),
    },
    audio_vae={
        "encoder_dim": 3,
        "encoder_rates": [2, 4, 4, 5, 5],
        "latent_dim": 96,
        "latent_channels": AUDIO_LATENT_CHANNELS,
        "num_attention_heads": 3,
        "decoder_dim": 32,
        "decoder_rates": [5, 5, 4, 4, 2],
        "decoder_kernel_sizes": [9, 9, 8, 8, 4],
        "resblock_kernel_sizes": [3, 7],
        "resblock_dilation_sizes": [[1], [3]],
        "sampling_rate": 32000,
        **_latent_statistics(AUDIO_LATENT_CHANNELS, 3.0),
    },
    text={
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 54,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "mrope_section": [4, 2, 2],
    },
    vision={
        "depth": 3,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_heads": 3,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [1],
    },
    picture=(4_096, 16_384),
    video=(8_192, 20_000),  # small enough that a reference video is shrunk
    shards={"transformer": 3, "transformer_ref": 3, "vae": 3, "text_encoder": 2},
)
