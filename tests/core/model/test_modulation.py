"""AdaLN tables against the direct computation, row by row."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from vflash.domain.model_facts import DenoiserFacts
from vflash.domain.schedule import Schedule
from vflash.model.modulation import TimeEmbedder, activated_embeddings, block_table, evaluation_timesteps, final_table
from vflash.model.positions import Role
from vflash.model.sigmas import grids

HIDDEN, WIDE, TIME, FREQ = 12, 20, 8, 16
FACTS = DenoiserFacts(
    num_attention_heads=1,
    attention_head_dim=12,
    hidden_size=HIDDEN,
    freq_dim=FREQ,
    time_embed_hidden_dim=WIDE,
    time_embed_dim=TIME,
    rope_freq_dim=2,
)
CPU = torch.device("cpu")


@pytest.fixture
def embed():
    generator = torch.Generator().manual_seed(0)

    def linear(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(rows, columns, generator=generator) / columns**0.5, torch.randn(rows, generator=generator)

    return TimeEmbedder(linear_1=linear(WIDE, FREQ), linear_2=linear(TIME, WIDE), freq_dim=FREQ)


def direct_embedding(embed: TimeEmbedder, t: float) -> torch.Tensor:
    """silu(temb) of one timestep, written out: cos before sin, base 10000."""
    angles = [t * 10000 ** (-k / (FREQ // 2)) for k in range(FREQ // 2)]
    sinusoid = torch.tensor([math.cos(a) for a in angles] + [math.sin(a) for a in angles])
    return F.silu(F.linear(F.silu(F.linear(sinusoid, *embed.linear_1)), *embed.linear_2))


@pytest.mark.parametrize("evaluations", [1, 4])
def test_tables_hold_what_each_role_would_compute(embed, evaluations):
    """Role r of evaluation e reads the projection at its own timestep and its own modality, six parts of one width."""
    both = grids(Schedule(evaluations=evaluations))
    plans = evaluation_timesteps(both, list(Role))
    embeddings = activated_embeddings(embed, plans, torch.float32, CPU)
    weight, bias = torch.randn(18 * HIDDEN, TIME), torch.randn(18 * HIDDEN)
    final_weight, final_bias = torch.randn(2 * HIDDEN, TIME), torch.randn(2 * HIDDEN)
    table = block_table(weight, bias, embeddings, plans, FACTS)
    final = final_table(final_weight, final_bias, embeddings, plans)
    assert table.shape == (evaluations, len(Role), 6, HIDDEN)
    assert final.shape == (evaluations, len(Role), 2, HIDDEN)
    tags = {Role.VIDEO: 0, Role.TEXT: 1, Role.AUDIO: 2, Role.CONDITION_VIDEO: 0, Role.CONDITION_AUDIO: 2}
    for evaluation in range(evaluations):
        for role, t in zip(Role, both.role_timesteps(evaluation), strict=True):
            temb = direct_embedding(embed, t)
            by_modality = F.linear(temb, weight, bias).view(3, 6, HIDDEN)
            torch.testing.assert_close(table[evaluation, role], by_modality[tags[role]])
            torch.testing.assert_close(final[evaluation, role], F.linear(temb, final_weight, final_bias).view(2, -1))


@pytest.mark.parametrize(
    ("used", "counts"),
    [
        ((Role.VIDEO, Role.TEXT, Role.AUDIO), (1, 2, 2)),
        ((Role.VIDEO, Role.TEXT, Role.AUDIO, Role.CONDITION_VIDEO), (2, 3, 3)),
        (tuple(Role), (3, 4, 4)),
    ],
)
def test_only_timesteps_in_use_are_projected(used, counts):
    """Both grids start at t = 0, so a text request has one distinct timestep first and two later; conditions add one
    each. Another row count could choose another GEMM kernel and round otherwise."""
    plans = evaluation_timesteps(grids(Schedule(evaluations=3)), used)
    assert tuple(len(plan.distinct) for plan in plans) == counts
    both = grids(Schedule(evaluations=3))
    for evaluation, plan in enumerate(plans):
        assert list(plan.distinct) == sorted(set(plan.distinct))
        timesteps = torch.tensor(both.role_timesteps(evaluation), dtype=torch.float32).tolist()
        assert [plan.distinct[plan.of_role[role]] for role in used] == [timesteps[role] for role in used]


def test_silu_runs_in_float32_before_the_cast(embed):
    """temb is float32; only the activated value is rounded to the model's dtype."""
    plans = evaluation_timesteps(grids(Schedule(evaluations=2)), [Role.VIDEO, Role.AUDIO])
    exact = activated_embeddings(embed, plans, torch.float32, CPU)
    rounded = activated_embeddings(embed, plans, torch.bfloat16, CPU)
    assert all(torch.equal(theirs, ours.bfloat16()) for ours, theirs in zip(exact, rounded, strict=True))
