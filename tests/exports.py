"""The same weights written in every layout people bring: canonical tensors in, stored tensors out.

Written from the layouts' descriptions, not from the loader's tables, so that the two can disagree.
"""

from __future__ import annotations

import torch

Tensors = dict[str, torch.Tensor]

RENAMES = (
    ("transformer_blocks.", "blocks."),
    ("token_refiner.refiner_blocks.", "token_refiner.blocks."),
    ("audio_proj_in.", "audio_patch_proj."),
    ("audio_proj_out.", "final_layer.audio_out."),
    ("proj_in.", "video_patch_proj."),
    ("proj_out.", "final_layer.video_out."),
    ("context_embedder.", "condition_proj."),
    ("time_embedder.linear_1.", "time_embedder.proj_in."),
    ("time_embedder.linear_2.", "time_embedder.proj_out."),
    ("norm_out.norm.", "final_layer.norm."),
    ("norm_out.linear.", "final_layer.adaln_proj.linear."),
    (".attn.norm_q.", ".attn.q_norm."),
    (".attn.norm_k.", ".attn.k_norm."),
    (".attn.to_out.0.", ".attn.out_proj."),
    (".ff.net.0.proj.", ".mlp.fc1."),
    (".ff.net.2.", ".mlp.fc2."),
)


def native_name(name: str) -> str:
    for canonical, native in RENAMES:
        inner = canonical.startswith(".")
        if (inner and canonical in name) or (not inner and name.startswith(canonical)):
            name = name.replace(canonical, native, 1)
    return name


def fuse_qkv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, heads: int | None) -> torch.Tensor:
    """All q, all k, all v; or per head q, k, v."""
    if heads is None:
        return torch.cat([q, k, v])
    width = q.shape[0] // heads
    rows = []
    for head in range(heads):
        rows += [part[head * width : (head + 1) * width] for part in (q, k, v)]
    return torch.cat(rows)


def swap_halves(rows: torch.Tensor) -> torch.Tensor:
    half = rows.shape[0] // 2
    return torch.cat([rows[half:], rows[:half]])


def export_native(tensors: Tensors, *, heads: int | None, prefix: str = "") -> Tensors:
    """The original release's names; `heads` given: interleaved per head, as released; None: grouped, as ComfyUI."""
    stored: Tensors = {}
    for name, tensor in tensors.items():
        if ".attn.to_q." in name:
            fused = fuse_qkv(*(tensors[name.replace("to_q", f"to_{part}")] for part in "qkv"), heads=heads)
            stored[native_name(name).replace("to_q", "qkv_proj")] = fused
        elif ".attn.to_k." not in name and ".attn.to_v." not in name:
            stored[native_name(name)] = swap_halves(tensor) if ".ff.net.0." in name else tensor.clone()
    stored["rope.inv_freq"] = torch.ones(4)
    return {prefix + name: tensor.contiguous() for name, tensor in stored.items()}
