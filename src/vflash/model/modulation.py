"""AdaLN as tables: a block's projection depends only on the timestep, so it runs once per schedule and is dropped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from attrs import frozen

from vflash.domain.model_facts import DenoiserFacts
from vflash.model.positions import MODALITIES, Role
from vflash.model.residual import with_residual
from vflash.model.sigmas import Grids
from vflash_ports.adapters import LowRank

PARTS = 6
"""shift, scale, gate of attention, then of the FFN."""


@frozen(kw_only=True, eq=False)
class TimeEmbedder:
    """Float32 in every checkpoint: sinusoid (cos first) -> linear_1 -> SiLU -> linear_2."""

    linear_1: tuple[torch.Tensor, torch.Tensor]
    linear_2: tuple[torch.Tensor, torch.Tensor]
    freq_dim: int
    residuals: tuple[LowRank | None, LowRank | None] = (None, None)

    def __call__(self, timesteps: torch.Tensor) -> torch.Tensor:
        """timesteps [n] float32 -> [n, time_embed_dim] float32."""
        half = self.freq_dim // 2
        exponent = -math.log(10000) * torch.arange(half, dtype=torch.float32, device=timesteps.device) / half
        angles = timesteps[:, None].float() * torch.exp(exponent)[None, :]
        sinusoid = torch.cat([angles.cos(), angles.sin()], dim=-1)
        hidden = F.silu(with_residual(F.linear(sinusoid, *self.linear_1), sinusoid, self.residuals[0]))
        return with_residual(F.linear(hidden, *self.linear_2), hidden, self.residuals[1])

    def activated(self, timesteps: torch.Tensor) -> torch.Tensor:
        """silu(temb) in float32: what every modulation projection reads."""
        return F.silu(self(timesteps))


@frozen(kw_only=True, eq=False)
class TimestepTable:
    """A pruned checkpoint's stand-in for the embedder and its SiLU: `table` [grid, width] float32, interpolated."""

    table: torch.Tensor

    def activated(self, timesteps: torch.Tensor) -> torch.Tensor:
        """timesteps [n] in [0, 1] -> [n, width] float32."""
        position = timesteps.float().clamp(0.0, 1.0) * (self.table.shape[0] - 1)
        lower = position.floor().long().clamp(max=self.table.shape[0] - 2)
        return torch.lerp(self.table[lower], self.table[lower + 1], (position - lower)[:, None])


@frozen(kw_only=True)
class EvaluationTimesteps:
    """The distinct timesteps of one evaluation, sorted, and which of them each used role reads."""

    distinct: tuple[float, ...]
    of_role: tuple[int, ...]


def evaluation_timesteps(grids: Grids, used: Sequence[Role]) -> tuple[EvaluationTimesteps, ...]:
    """One entry an evaluation. `used` are the roles present in the packed sequence.

    The projection runs with exactly these rows: another row count may choose another GEMM kernel and round otherwise.
    """
    plans = []
    for evaluation in range(grids.evaluations):
        role_t = torch.tensor(grids.role_timesteps(evaluation), dtype=torch.float32)
        present = torch.tensor([int(role) for role in used])
        distinct, inverse = torch.unique(role_t[present], sorted=True, return_inverse=True)
        of_role = [0] * len(Role)
        for position, role in enumerate(used):
            of_role[role] = int(inverse[position])
        plans.append(EvaluationTimesteps(distinct=tuple(distinct.tolist()), of_role=tuple(of_role)))
    return tuple(plans)


def activated_embeddings(
    embed: TimeEmbedder | TimestepTable, plans: Iterable[EvaluationTimesteps], dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """silu(temb) in float32, then cast: [distinct, time_embed_dim] an evaluation."""
    return [
        embed.activated(torch.tensor(plan.distinct, dtype=torch.float32, device=device)).to(dtype) for plan in plans
    ]


def block_table(
    weight: torch.Tensor,
    bias: torch.Tensor,
    embeddings: Sequence[torch.Tensor],
    plans: Sequence[EvaluationTimesteps],
    facts: DenoiserFacts,
    residual: LowRank | None = None,
) -> torch.Tensor:
    """One block's projection for the whole schedule -> [evaluations, roles, 6, hidden]."""
    tables = []
    for embedding, plan in zip(embeddings, plans, strict=True):
        rows = with_residual(F.linear(embedding, weight, bias), embedding, residual)
        rows = rows.view(-1, MODALITIES, PARTS, facts.hidden_size)
        tables.append(torch.stack([rows[plan.of_role[role], role.tag] for role in Role]))
    return torch.stack(tables)


def final_table(
    weight: torch.Tensor,
    bias: torch.Tensor,
    embeddings: Sequence[torch.Tensor],
    plans: Sequence[EvaluationTimesteps],
    residual: LowRank | None = None,
) -> torch.Tensor:
    """The output norm's shift and scale -> [evaluations, roles, 2, hidden]; it has no modality."""
    tables = []
    for embedding, plan in zip(embeddings, plans, strict=True):
        rows = with_residual(F.linear(embedding, weight, bias), embedding, residual).unflatten(-1, (2, -1))
        tables.append(torch.stack([rows[plan.of_role[role]] for role in Role]))
    return torch.stack(tables)
