"""Module names of the original release and their canonical (diffusers) names. Facts of the public converter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

OUTER_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "video_patch_proj": "proj_in",
        "audio_patch_proj": "audio_proj_in",
        "condition_proj": "context_embedder",
        "time_embedder.proj_in": "time_embedder.linear_1",
        "time_embedder.proj_out": "time_embedder.linear_2",
        "token_refiner.final_norm": "token_refiner.final_norm",
        "final_layer.norm": "norm_out.norm",
        "final_layer.adaln_proj.linear": "norm_out.linear",
        "final_layer.video_out": "proj_out",
        "final_layer.audio_out": "audio_proj_out",
    }
)
STACKS: Mapping[str, str] = MappingProxyType(
    {"blocks": "transformer_blocks", "token_refiner.blocks": "token_refiner.refiner_blocks"}
)
BLOCK_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "norm1": "norm1",
        "norm2": "norm2",
        "attn.q_norm": "attn.norm_q",
        "attn.k_norm": "attn.norm_k",
        "attn.out_proj": "attn.to_out.0",
        "mlp.fc2": "ff.net.2",
        "adaln_proj.linear": "adaln_proj.linear",
    }
)
"""Modules of a block that keep their rows."""

FUSED_QKV = "attn.qkv_proj"
QKV = ("attn.to_q", "attn.to_k", "attn.to_v")
GATE_VALUE = "mlp.fc1"
"""Stored [gate; value]; the canonical `ff.net.0.proj` is [value; gate]."""
VALUE_GATE = "ff.net.0.proj"

DROPPED = frozenset({"rope.inv_freq"})
"""Recomputed from the configuration."""
MODULATION_TABLE = "adaln_t_table"
"""A pruned checkpoint's stand-in for the time embedder: [grid, width] float32, row i at t = i / (grid - 1)."""
COMFY_PREFIX = "model.diffusion_model."

_BLOCK = re.compile(r"(blocks|token_refiner\.blocks)\.(\d+)\.(.+)")


def split_block(module: str) -> tuple[str, str] | None:
    """`blocks.7.attn.out_proj` -> (`transformer_blocks.7.`, `attn.out_proj`); None for a module outside the stacks."""
    match = _BLOCK.fullmatch(module)
    if match is None:
        return None
    return f"{STACKS[match[1]]}.{int(match[2])}.", match[3]
