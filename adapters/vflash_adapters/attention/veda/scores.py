"""Block logits: how much a query tile is expected to attend to a key tile."""

from __future__ import annotations

import torch

from vflash_adapters.attention.veda.predictor import Projections


def block_logits(
    q_features_HNF: torch.Tensor, k_features_HNF: torch.Tensor, projections: Projections | None
) -> torch.Tensor:
    """Features float32 [H, N, 3D] as mean, max, min of each tile's real rows -> logits float32 [H, N, N].

    Only the ranking within a row is used, so the positive factor 1/sqrt(D) is left out. Without `projections` the
    logits are those of the mean-pooled q and k.
    """
    q_HND = embed(q_features_HNF, projections.q if projections else None)
    k_HND = embed(k_features_HNF, projections.k if projections else None)
    return torch.bmm(q_HND, k_HND.transpose(1, 2))


def embed(features_HNF: torch.Tensor, projection_HFD: torch.Tensor | None) -> torch.Tensor:
    """mean + features @ projection, float32 [H, N, D]."""
    mean_HND = features_HNF[..., : features_HNF.shape[-1] // 3]
    if projection_HFD is None:
        return mean_HND
    return torch.baddbmm(mean_HND, features_HNF, projection_HFD.float())
