"""Deterministic random weights, and safetensors files sharded with an index as the release has them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn


class StoredDtype(StrEnum):
    """`float32` everywhere, or the release's mix: BF16 transformers (12 FP32 tensors each) and BF16 text encoder."""

    FLOAT32 = "float32"
    MIXED = "mixed"


# What the released transformer keeps in FP32: both patch projections, the time embedder, both output heads.
TRANSFORMER_FLOAT32 = ("proj_in.", "audio_proj_in.", "time_embedder.", "proj_out.", "audio_proj_out.")

# Suffix -> (centre, spread) of the values drawn; the first match wins. A default-initialised model would be blind:
# zero block scales make every VAE decoder block the identity, zero AdaLN biases make gates vanish.
_FIXED_SPREAD = (
    (".scale1", 0.3, 0.1),
    (".scale2", 0.3, 0.1),
    ("register_tokens", 0.0, 1.0),
    ("embed_tokens.weight", 0.0, 1.0),
    ("pos_embed.weight", 0.0, 0.5),
    ("adaln_proj.linear.bias", 0.0, 0.4),
    ("norm_out.linear.bias", 0.0, 0.2),
    ("conv_post.weight_g", 0.12, 0.01),
    (".weight_g", 1.0, 0.1),
    ("bias", 0.0, 0.05),
)
COMPUTED = (".filter", ".zero_k_bias")  # computed by the model, not learned


def random_tensors(module: nn.Module, *, label: str, seed: int) -> dict[str, torch.Tensor]:
    """FP32 values for every stored tensor of `module`; each depends on `seed`, `label` and its own name alone."""
    return {name: _draw(name, tensor, f"{seed}/{label}/{name}") for name, tensor in module.state_dict().items()}


def cast_stored(tensors: Mapping[str, torch.Tensor], *, float32: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """BF16, but for the names that start with one of `float32`."""
    import torch

    return {name: tensor if name.startswith(float32) else tensor.to(torch.bfloat16) for name, tensor in tensors.items()}


def save_shards(tensors: Mapping[str, torch.Tensor], folder: Path, *, stem: str, shards: int) -> None:
    """`stem-0000i-of-0000n.safetensors` and `stem.safetensors.index.json`; one shard is a plain `stem.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        _save(tensors, folder / f"{stem}.safetensors")
        return
    total = sum(tensor.nbytes for tensor in tensors.values())
    weight_map: dict[str, str] = {}
    groups: list[dict[str, torch.Tensor]] = [{} for _ in range(shards)]
    before = 0
    for name, tensor in tensors.items():
        shard = min(shards - 1, before * shards // total)
        groups[shard][name] = tensor
        weight_map[name] = f"{stem}-{shard + 1:05d}-of-{shards:05d}.safetensors"
        before += tensor.nbytes
    for number, group in enumerate(groups, start=1):
        _save(group, folder / f"{stem}-{number:05d}-of-{shards:05d}.safetensors")
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    from safetensors.torch import save

    # Written here rather than by safetensors, whose own files no other user can read.
    path.write_bytes(save(dict(tensors), metadata={"format": "pt"}))


def _draw(name: str, like: torch.Tensor, key: str) -> torch.Tensor:
    import torch

    if name.endswith(COMPUTED):
        return like.clone()
    digest = hashlib.sha256(key.encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    noise = torch.randn(like.shape, generator=generator, dtype=torch.float32)
    centre, spread = centre_and_spread(name, like.shape)
    return (noise * spread + centre).contiguous()


def centre_and_spread(name: str, shape: Sequence[int]) -> tuple[float, float]:
    """What a random tensor of this name is drawn around, so that no layer is silent and none grows without end."""
    for suffix, centre, spread in _FIXED_SPREAD:
        if name.endswith(suffix):
            return centre, spread
    if name.endswith((".alpha", ".beta")):
        # The audio encoder stores its Snake frequency itself, the decoder its logarithm.
        return (1.0, 0.1) if len(shape) == 3 else (0.0, 0.1)
    if len(shape) == 1:
        return 1.0, 0.1  # the weight of a norm
    return 0.0, math.prod(shape[1:]) ** -0.5
