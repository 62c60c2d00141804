"""FlexAttention on the very tiles that Veda kept, for comparison: rows gathered into tile order, padding masked."""

from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from attention_cases import Case, random_plan, random_projections, random_qkv
from attention_timing import timed
from vflash_adapters.attention.veda.fast import FastSparseCall
from vflash_adapters.attention.veda.kept_lists import kept_mask
from vflash_adapters.attention.veda.tiles import TILE_ROWS


def flex_milliseconds(case: Case, device: torch.device, call: FastSparseCall, repeats: int) -> dict[str, float]:
    """Median milliseconds of the compiled kernel alone, and of gathering q, k, v and scattering the output."""
    q, k, v = random_qkv(case, device)
    head_shape = torch.tensor(random_plan(case).head_shape[0], dtype=torch.int32, device=device)
    call(q.clone(), k, v, projections=random_projections(case, device), head_shape=head_shape)
    rows = call.tiling.rows[head_shape.long()].flatten(1).clamp_min(0).long()
    q_tiles, k_tiles, v_tiles = (gathered(x, rows) for x in (q, k, v))
    block_mask = flex_mask(call, head_shape, device)
    compiled = torch.compile(flex_attention)
    return {
        "kernel": timed(lambda: compiled(q_tiles, k_tiles, v_tiles, block_mask=block_mask), repeats),
        "gather q, k, v": timed(lambda: [gathered(x, rows) for x in (q, k, v)], repeats),
    }


def gathered(x_SHD: torch.Tensor, rows_HN: torch.Tensor) -> torch.Tensor:
    """[1, H, N, D] in tile order."""
    heads = torch.arange(x_SHD.shape[1], device=x_SHD.device)
    return x_SHD[rows_HN, heads[:, None]].unsqueeze(0)


def flex_mask(call: FastSparseCall, head_shape: torch.Tensor, device: torch.device) -> BlockMask:
    mask = kept_mask(call.kept, call.tiling, head_shape).to(device)
    valid = call.tiling.valid[head_shape.long()]
    full = mask & (valid == TILE_ROWS)[:, None, :]
    partial = mask & ~full
    counts, indices = _counts_and_indices(partial)
    full_counts, full_indices = _counts_and_indices(full)

    def real(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return kv % TILE_ROWS < valid[h, kv // TILE_ROWS]

    return BlockMask.from_kv_blocks(counts, indices, full_counts, full_indices, BLOCK_SIZE=TILE_ROWS, mask_mod=real)


def _counts_and_indices(mask_HNN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    counts = mask_HNN.sum(-1, dtype=torch.int32)
    indices = torch.argsort(mask_HNN.to(torch.int8), dim=-1, descending=True, stable=True).int()
    return counts[None].contiguous(), indices[None].contiguous()
