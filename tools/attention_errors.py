"""Errors of one call at full size, on a few heads: arithmetic, and what leaving tiles out does."""

from __future__ import annotations

import torch

from attention_cases import Case, exact_names, random_plan, random_projections
from vflash_adapters.attention.device_default import exact_backend
from vflash_adapters.attention.naive import NaiveAttention
from vflash_adapters.attention.veda.fast import FastSparseCall
from vflash_adapters.attention.veda.kept_lists import kept_mask
from vflash_adapters.attention.veda.reference import attend_kept

HEADS = (0, 19, 37, 55)
SAMPLED_TILES = 16
QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def exact_errors(case: Case, qkv: QKV, device: torch.device) -> dict[str, float]:
    """Relative L2 errors of the exact backends against float32; q, k and v stay as they are."""
    q, k, v = (x[:, list(HEADS)].float() for x in qkv)
    layout = case.layout(device)
    dense = NaiveAttention()._attend(q, k, v)
    errors = {}
    for name in exact_names(layout):
        attend = exact_backend(name).prepare(layout)
        found = attend(qkv[0].clone(), *qkv[1:], block=0, evaluation=0)[:, list(HEADS)]
        errors[f"{name} against dense float32"] = relative(found.float(), dense)
    return errors


def measure_errors(case: Case, qkv: QKV, call: FastSparseCall, device: torch.device) -> dict[str, float]:
    """Relative L2 errors against float32, and the share of the dense attention weight that the kept tiles hold."""
    head_shape = torch.tensor(random_plan(case).head_shape[0], dtype=torch.int32, device=device)
    sparse = call(qkv[0].clone(), *qkv[1:], projections=random_projections(case, device), head_shape=head_shape)
    heads = list(HEADS)
    mask = kept_mask(call.kept, call.tiling, head_shape)[heads].to(device)
    q, k, v = (x[:, heads].float() for x in qkv)
    dense = NaiveAttention()._attend(q, k, v)
    exact = attend_kept(q, k, v, mask, tiling=call.tiling, head_shape=head_shape[heads])
    video = slice(case.text_rows + case.audio_rows, None)
    return {
        "veda against sparse float32": relative(sparse[:, heads].float(), exact),
        "veda against dense float32": relative(sparse[:, heads].float(), dense),
        "veda against dense float32, video rows": relative(sparse[video, heads].float(), dense[video]),
        "kept attention mass, video rows": kept_mass(q, k, mask, call, head_shape[heads]),
    }


def kept_mass(
    q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor, call: FastSparseCall, head_shape: torch.Tensor
) -> float:
    """Mean over heads and evenly spaced video query tiles of the dense softmax weight inside the kept tiles."""
    masses = []
    for head, shape in enumerate(head_shape.tolist()):
        layout, rows = call.tiling.layouts[shape], call.tiling.rows[shape]
        for tile in range(0, layout.n_video, max(1, layout.n_video // SAMPLED_TILES)):
            query = rows[tile, : int(layout.valid[tile])].long()
            weights = torch.softmax(q[query, head] @ k[:, head].T * q.shape[-1] ** -0.5, dim=-1)
            kept = rows[mask[head, tile]].flatten()
            masses.append(weights[:, kept[kept >= 0].long()].sum(1).mean())
    return float(torch.stack(masses).mean())


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
