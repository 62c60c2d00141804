"""Veda in plain torch, in float32: the paper's steps, one head and one query tile at a time."""

from __future__ import annotations

import torch
from attrs import define, field, frozen

from vflash_adapters.attention.veda.predictor import Projections
from vflash_adapters.attention.veda.scores import block_logits
from vflash_adapters.attention.veda.tiling import Tiling
from vflash_ports.attention import AttentionLayout


@frozen(kw_only=True)
class ReferenceKernels:
    """Runs on any device; float64 inputs are computed in float64. Slow, and it waits for the device."""

    name: str = field(default="reference", init=False)

    def prepare(self, tiling: Tiling, layout: AttentionLayout) -> ReferenceSparseCall:
        return ReferenceSparseCall(name=self.name, tiling=tiling)


@define(kw_only=True, eq=False)
class ReferenceSparseCall:
    name: str
    tiling: Tiling
    _kept: int = 0

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        projections: Projections | None,
        head_shape: torch.Tensor,
    ) -> torch.Tensor:
        q_features, k_features = (pooled_features(x, self.tiling, head_shape) for x in (q, k))
        mask = select_tiles(block_logits(q_features, k_features, projections), self.tiling, head_shape)
        self._kept += kept_video_pairs(mask, self.tiling, head_shape)
        return attend_kept(q, k, v, mask, tiling=self.tiling, head_shape=head_shape)

    def kept_pairs(self) -> int:
        return self._kept


def pooled_features(x_SHD: torch.Tensor, tiling: Tiling, head_shape: torch.Tensor) -> torch.Tensor:
    """float32 [H, N, 3D]: mean, max, min over each tile's real rows; zero where there is no such tile."""
    _, heads, head_dim = x_SHD.shape
    features = torch.zeros(heads, tiling.tiles, 3 * head_dim, dtype=torch.float32, device=x_SHD.device)
    for head, shape in enumerate(head_shape.tolist()):
        for tile in range(tiling.layouts[shape].n_tiles):
            rows = _real_rows(tiling, shape, tile)
            x = x_SHD[rows, head].float()
            features[head, tile] = torch.cat([x.sum(0) / len(rows), x.amax(0), x.amin(0)])
    return features


def select_tiles(logits_HNN: torch.Tensor, tiling: Tiling, head_shape: torch.Tensor) -> torch.Tensor:
    """bool [H, N, N], rows query tiles: the budget's best key tiles, the own tile, and everything global.

    Among equal logits the lower tile number wins.
    """
    mask = torch.zeros_like(logits_HNN, dtype=torch.bool)
    for head, shape in enumerate(head_shape.tolist()):
        layout = tiling.layouts[shape]
        for block, (first, last) in enumerate(((0, layout.n_ref), (layout.n_ref, layout.n_video))):
            for tile in range(layout.n_video):
                logits = logits_HNN[head, tile, first:last].clone()
                if first <= tile < last:
                    logits[tile - first] = torch.inf
                order = torch.sort(logits, descending=True, stable=True).indices
                mask[head, tile, first + order[: int(tiling.keep[shape, tile, block])]] = True
        mask[head, : layout.n_tiles, layout.n_video : layout.n_tiles] = True
        mask[head, layout.n_video : layout.n_tiles, : layout.n_tiles] = True
    return mask


def kept_video_pairs(mask_HNN: torch.Tensor, tiling: Tiling, head_shape: torch.Tensor) -> int:
    videos = [tiling.layouts[shape].n_video for shape in head_shape.tolist()]
    return sum(int(mask_HNN[head, :n, :n].sum()) for head, n in enumerate(videos))


def attend_kept(
    q_SHD: torch.Tensor,
    k_SHD: torch.Tensor,
    v_SHD: torch.Tensor,
    mask_HNN: torch.Tensor,
    *,
    tiling: Tiling,
    head_shape: torch.Tensor,
) -> torch.Tensor:
    """Softmax over the real rows of the kept tiles only; skipped tiles contribute nothing."""
    compute = torch.promote_types(q_SHD.dtype, torch.float32)
    out = torch.empty(q_SHD.shape, dtype=q_SHD.dtype, device=q_SHD.device)
    for head, shape in enumerate(head_shape.tolist()):
        for tile in range(tiling.layouts[shape].n_tiles):
            query_rows = _real_rows(tiling, shape, tile)
            kept_rows = tiling.rows[shape, mask_HNN[head, tile]].flatten()
            key_rows = kept_rows[kept_rows >= 0]
            q, k, v = (
                x[rows, head].to(compute) for x, rows in ((q_SHD, query_rows), (k_SHD, key_rows), (v_SHD, key_rows))
            )
            weights = torch.softmax(q @ k.T * q.shape[-1] ** -0.5, dim=-1)
            out[query_rows, head] = (weights @ v).to(out.dtype)
    return out


def _real_rows(tiling: Tiling, shape: int, tile: int) -> torch.Tensor:
    return tiling.rows[shape, tile, : int(tiling.layouts[shape].valid[tile])].long()
