"""Veda's steps in plain torch: pooling, scoring, selection, and attention over the kept tiles only."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash_adapters.attention.naive import NaiveAttention
from vflash_adapters.attention.veda.budget import Budget, BudgetKind
from vflash_adapters.attention.veda.plans import Plan
from vflash_adapters.attention.veda.predictor import Projections
from vflash_adapters.attention.veda.reference import (
    ReferenceKernels,
    attend_kept,
    kept_video_pairs,
    pooled_features,
    select_tiles,
)
from vflash_adapters.attention.veda.scores import block_logits, embed
from vflash_adapters.attention.veda.self_test import check_kernels, self_test_layout
from vflash_adapters.attention.veda.tiles import LEGAL_SHAPES, Extents
from vflash_adapters.attention.veda.tiling import Tiling, build_tiling, tiled_spans
from vflash_ports.attention import AttentionLayout

CPU = torch.device("cpu")
HEADS, HEAD_DIM = 2, 16
LAYOUT = self_test_layout(CPU, torch.float64, HEAD_DIM)
HEAD_SHAPE = torch.tensor([0, 1], dtype=torch.int32)


def tiling(
    target: float = 2, reference: float = 1, shapes: tuple[Extents, ...] = ((4, 4, 8), (2, 8, 8)), tiled: bool = True
) -> Tiling:
    spans = tiled_spans(LAYOUT, tile_conditions=tiled)
    plan = Plan(name="test", grid=spans.target_grid, shapes=shapes, head_shape=((0, 1),))
    budgets = [Budget(kind=BudgetKind.TILES, value=value) for value in (target, reference)]
    return build_tiling(spans, plan, budgets[0], budgets[1], CPU)


def random_qkv(layout: AttentionLayout, seed: int = 0) -> list[torch.Tensor]:
    fused = torch.randn(layout.rows, 3, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(seed)).double()
    return list(fused.unbind(1))


def random_projections(seed: int = 0, scale: float = 0.1) -> Projections:
    weights = torch.randn(2, HEADS, 3 * HEAD_DIM, HEAD_DIM, generator=torch.Generator().manual_seed(seed)) * scale
    return Projections(q=weights[0].bfloat16(), k=weights[1].bfloat16())


def test_features_are_mean_max_min_of_the_real_rows() -> None:
    """All values negative: a padded row counted as zero would show in the maximum and in the mean."""
    tiles = tiling()
    x = -1 - torch.rand(LAYOUT.rows, HEADS, HEAD_DIM)
    features = pooled_features(x, tiles, HEAD_SHAPE)
    rows = tiles.rows[0, 2, : int(tiles.valid[0, 2])].long()
    assert len(rows) == 32
    assert torch.allclose(features[0, 2, :HEAD_DIM], x[rows, 0].mean(0))
    assert torch.equal(features[0, 2, HEAD_DIM : 2 * HEAD_DIM], x[rows, 0].amax(0))
    assert torch.equal(features[0, 2, 2 * HEAD_DIM :], x[rows, 0].amin(0))


def test_features_of_tiles_that_a_shape_does_not_have_are_zero() -> None:
    """2x8x8 needs three tiles for the target where 4x4x8 needs four; a reference and a global tile come with both."""
    tiles = tiling()
    features = pooled_features(torch.ones(LAYOUT.rows, HEADS, HEAD_DIM), tiles, HEAD_SHAPE)
    assert [layout.n_tiles for layout in tiles.layouts] == [6, 5]
    assert not features[1, 5:].any()
    assert features[1, :5].all()


def test_zero_projections_score_as_mean_pooling() -> None:
    """The predictor adds to the mean, so a predictor of zeros is the predictor-free baseline."""
    q, k, _ = random_qkv(LAYOUT)
    features = [pooled_features(x, tiling(), HEAD_SHAPE) for x in (q, k)]
    zeros = random_projections(scale=0.0)
    assert torch.equal(block_logits(*features, projections=zeros), block_logits(*features, projections=None))
    means = [x[..., :HEAD_DIM] for x in features]
    assert torch.equal(block_logits(*features, projections=None), means[0] @ means[1].transpose(1, 2))


def test_embedding_is_mean_plus_projected_features() -> None:
    """Against the formula in float64."""
    features = torch.randn(HEADS, 5, 3 * HEAD_DIM)
    weights = random_projections().q
    expected = features[..., :HEAD_DIM].double() + features.double() @ weights.double()
    assert torch.allclose(embed(features, weights).double(), expected, atol=1e-5)


def test_selection_keeps_own_tile_budget_and_everything_global() -> None:
    """Two target tiles and one reference tile per video row; the own tile takes its place in the budget."""
    tiles = tiling()
    logits = torch.randn(HEADS, tiles.tiles, tiles.tiles, generator=torch.Generator().manual_seed(3))
    mask = select_tiles(logits, tiles, HEAD_SHAPE)
    for head, layout in enumerate(tiles.layouts):
        video, everything = layout.n_video, layout.n_tiles
        assert (mask[head, :video, :1].sum(1) == 1).all()
        assert (mask[head, :video, 1:video].sum(1) == 2).all()
        assert mask[head, :video, :video].diagonal().all()
        assert mask[head, :everything, video:everything].all()
        assert mask[head, video:everything, :everything].all()
        assert not mask[head, everything:].any()
        assert not mask[head, :, everything:].any()
    assert kept_video_pairs(mask, tiles, HEAD_SHAPE) == 5 * 3 + 4 * 3


def test_selection_takes_the_best_and_the_lower_of_two_equal_tiles() -> None:
    """One row worked by hand: own tile 1, then the largest logit, ties to the lower number."""
    tiles = tiling(target=3)
    logits = torch.full((HEADS, tiles.tiles, tiles.tiles), -5.0)
    logits[0, 1, 3] = 7.0
    mask = select_tiles(logits, tiles, HEAD_SHAPE)
    assert mask[0, 1].nonzero().flatten().tolist() == [0, 1, 2, 3, 5]


def test_keeping_all_tiles_is_dense_attention() -> None:
    """Every tile kept, partial tiles, a tiled reference and two shapes: float64 rounding remains."""
    tiles = tiling()
    q, k, v = random_qkv(LAYOUT)
    exists = torch.arange(tiles.tiles)[None] < torch.tensor([layout.n_tiles for layout in tiles.layouts])[:, None]
    out = attend_kept(q, k, v, exists[:, :, None] & exists[:, None, :], tiling=tiles, head_shape=HEAD_SHAPE)
    dense = NaiveAttention().prepare(LAYOUT)(q, k, v, block=0, evaluation=0)
    assert (out - dense).abs().max() < 1e-12


def test_a_sparse_call_is_softmax_under_the_mask_of_kept_rows() -> None:
    """Against the whole score matrix in float64 with minus infinity where a tile was left out."""
    tiles = tiling()
    q, k, v = random_qkv(LAYOUT)
    call = ReferenceKernels().prepare(tiles, LAYOUT)
    out = call(q, k, v, projections=random_projections(), head_shape=HEAD_SHAPE)
    features = [pooled_features(x, tiles, HEAD_SHAPE) for x in (q, k)]
    mask = select_tiles(block_logits(*features, projections=random_projections()), tiles, HEAD_SHAPE)
    for head in range(HEADS):
        tile_of = torch.empty(LAYOUT.rows, dtype=torch.long)
        for tile, rows in enumerate(tiles.rows[head]):
            tile_of[rows[rows >= 0].long()] = tile
        scores = q[:, head] @ k[:, head].T / HEAD_DIM**0.5
        scores.masked_fill_(~mask[head][tile_of][:, tile_of], -torch.inf)
        assert (out[:, head] - torch.softmax(scores, 1) @ v[:, head]).abs().max() < 1e-12
    assert call.kept_pairs() == 27


def test_heads_do_not_depend_on_each_other() -> None:
    """Each head alone gives what all heads together give."""
    q, k, v = random_qkv(LAYOUT)
    weights = random_projections()
    together = ReferenceKernels().prepare(tiling(), LAYOUT)(q, k, v, projections=weights, head_shape=HEAD_SHAPE)
    for head in range(HEADS):
        one = slice(head, head + 1)
        alone = ReferenceKernels().prepare(tiling(), LAYOUT)(
            q[:, one], k[:, one], v[:, one],
            projections=Projections(q=weights.q[one], k=weights.k[one]), head_shape=HEAD_SHAPE[one],
        )  # fmt: skip
        assert torch.equal(alone[:, 0], together[:, head])


def test_references_stay_global_for_a_predictor_that_never_saw_them_tiled() -> None:
    """Then the reference rows are among the global ones, and only the target is tiled."""
    tiles = tiling(tiled=False)
    assert all(layout.n_ref == 0 for layout in tiles.layouts)
    assert [layout.n_global for layout in tiles.layouts] == [2, 2]


@settings(deadline=None, max_examples=25)
@given(
    shapes=st.tuples(st.sampled_from(LEGAL_SHAPES), st.sampled_from(LEGAL_SHAPES)),
    target=st.floats(1, 6),
    reference=st.floats(1, 2),
    seed=st.integers(0, 2**16),
)
def test_every_row_keeps_its_budget_on_any_shapes(
    shapes: tuple[Extents, Extents], target: float, reference: float, seed: int
) -> None:
    """Kept counts per query tile and block are exactly what the budget says, whatever the logits."""
    tiles = tiling(target, reference, shapes)
    logits = torch.randn(HEADS, tiles.tiles, tiles.tiles, generator=torch.Generator().manual_seed(seed))
    mask = select_tiles(logits, tiles, HEAD_SHAPE)
    for head, layout in enumerate(tiles.layouts):
        rows = mask[head, : layout.n_video]
        assert torch.equal(rows[:, : layout.n_ref].sum(1), tiles.keep[head, : layout.n_video, 0].long())
        assert torch.equal(rows[:, layout.n_ref : layout.n_video].sum(1), tiles.keep[head, : layout.n_video, 1].long())


def test_the_self_test_passes_on_the_reference() -> None:
    """558 rows, six tiles, in half precision on the CPU."""
    assert tiling().layouts[0].n_tiles == 6
    check_kernels(ReferenceKernels(), CPU, torch.bfloat16, HEAD_DIM)
