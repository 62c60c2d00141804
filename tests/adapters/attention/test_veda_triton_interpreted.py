"""Veda's Triton kernels against the torch reference, in Triton's interpreter: on a CPU, in a second process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash_adapters.attention.veda import fast, reference, triton_attend
from vflash_adapters.attention.veda.budget import Budget, BudgetKind
from vflash_adapters.attention.veda.kept_lists import QUARTERS, allocate_lists, kept_mask
from vflash_adapters.attention.veda.plans import Plan
from vflash_adapters.attention.veda.predictor import Projections
from vflash_adapters.attention.veda.scores import block_logits
from vflash_adapters.attention.veda.self_test import self_test_layout
from vflash_adapters.attention.veda.tiles import LEGAL_SHAPES, Extents
from vflash_adapters.attention.veda.tiling import Tiling, build_tiling, tiled_spans
from vflash_adapters.attention.veda.triton_pool import pool_tiles
from vflash_adapters.attention.veda.triton_score import block_logits as triton_logits
from vflash_adapters.attention.veda.triton_select import select_tiles

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # read by Triton at its import, so a process has one mode
interpreted = pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's process")

# The interpreter multiplies bfloat16 as if it were whole numbers, so half precision stands in for it here.
CPU, LOW = torch.device("cpu"), torch.float16
HEADS, HEAD_DIM = 3, 16
LAYOUT = evolve(self_test_layout(CPU, LOW, HEAD_DIM), heads=HEADS)
SHAPES: tuple[Extents, ...] = ((4, 4, 8), (2, 8, 8), (8, 4, 4))
HEAD_SHAPE = torch.tensor([0, 1, 2], dtype=torch.int32)


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's run")
def test_the_kernels_pass_this_file_in_the_interpreter() -> None:
    """A second process runs the other tests of this file with Triton interpreted."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout


def tiling(target: float = 2.5, reference_tiles: float = 1, shapes: tuple[Extents, ...] = SHAPES) -> Tiling:
    spans = tiled_spans(LAYOUT, tile_conditions=True)
    plan = Plan(name="test", grid=spans.target_grid, shapes=shapes, head_shape=((0, 1, 2),))
    budgets = [Budget(kind=BudgetKind.TILES, value=value) for value in (target, reference_tiles)]
    return build_tiling(spans, plan, budgets[0], budgets[1], CPU)


def random_qkv(seed: int = 0) -> tuple[torch.Tensor, ...]:
    fused = torch.randn(LAYOUT.rows, 3, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(seed))
    return (fused * 1.5).to(LOW).unbind(1)


def random_projections() -> Projections:
    weights = torch.randn(2, HEADS, 3 * HEAD_DIM, HEAD_DIM, generator=torch.Generator().manual_seed(9)) * 0.1
    # Half precision for the same reason as above; the model's are bfloat16.
    return Projections(q=weights[0].half(), k=weights[1].half())


@interpreted
def test_pooling_ignores_padding_and_missing_tiles() -> None:
    """Mean, maximum and minimum of partial tiles; zeros where a shape has fewer tiles than another."""
    tiles = tiling()
    q, k, _ = (-1 - x.abs() for x in random_qkv())
    found = pool_tiles(q, k, tiles, HEAD_SHAPE)
    expected = torch.stack([reference.pooled_features(x, tiles, HEAD_SHAPE) for x in (q, k)])
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(found[..., HEAD_DIM:], expected[..., HEAD_DIM:])


@interpreted
@pytest.mark.parametrize("projected", [True, False])
def test_logits_equal_the_reference(projected: bool) -> None:
    """With and without a predictor, on a count of tiles that is no multiple of the kernel's block."""
    features = torch.randn(2, HEADS, 70, 3 * HEAD_DIM, generator=torch.Generator().manual_seed(1))
    projections = random_projections() if projected else None
    expected = block_logits(features[0], features[1], projections)
    assert torch.allclose(triton_logits(features, projections), expected, rtol=1e-4, atol=1e-4)


@interpreted
@settings(deadline=None, max_examples=4)
@given(
    shapes=st.tuples(*[st.sampled_from(LEGAL_SHAPES)] * 3),
    target=st.floats(1, 6),
    reference_tiles=st.floats(1, 2),
    ties=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_selection_equals_the_reference(
    shapes: tuple[Extents, ...], target: float, reference_tiles: float, ties: bool, seed: int
) -> None:
    """Same tiles for any shapes, budgets and logits, ties included; and every real row is listed exactly once."""
    tiles = tiling(target, reference_tiles, shapes)
    logits = torch.randn(HEADS, tiles.tiles, tiles.tiles, generator=torch.Generator().manual_seed(seed))
    logits = logits.round() if ties else logits
    kept, pairs = allocate_lists(tiles, HEADS), torch.zeros(HEADS, dtype=torch.int64)
    select_tiles(logits, tiles, HEAD_SHAPE, kept, pairs)
    expected = reference.select_tiles(logits, tiles, HEAD_SHAPE)
    assert torch.equal(kept_mask(kept, tiles, HEAD_SHAPE), expected)
    assert int(pairs.sum()) == reference.kept_video_pairs(expected, tiles, HEAD_SHAPE)
    for head, shape in enumerate(HEAD_SHAPE.tolist()):
        for tile in range(tiles.layouts[shape].n_tiles):
            item = kept.items[kept.item(head, tile, tiles.layouts[shape])].tolist()
            _, n_full, quarters, n_quarters = item[3:7]
            codes = kept.lists[quarters : quarters + n_quarters]
            assert len(set(codes.tolist())) == n_quarters
            rows = 128 * n_full + int((codes % 64).sum())
            assert item[:3] == [head, shape * tiles.tiles + tile, int(tiles.valid[shape, tile])]
            assert rows == int(tiles.valid[shape, expected[head, tile]].sum())
            assert bool((tiles.valid[shape, (codes // 64 // QUARTERS).long()] < 128).all())


@interpreted
@pytest.mark.parametrize("key_rows", [32, 128])
def test_a_whole_call_equals_the_reference(key_rows: int) -> None:
    """Strided q, k, v; tiled reference; partial tiles; the result is written over q and nowhere else."""
    q, k, v = random_qkv()
    tiles, projections = tiling(), random_projections()
    config = triton_attend.AttendConfig(key_rows=key_rows)
    call = fast.prepare_call("triton", tiles, LAYOUT, triton_attend.attend_kept, config)
    exact = reference.ReferenceKernels().prepare(tiles, LAYOUT)
    expected = exact(q.double(), k.double(), v.double(), projections=projections, head_shape=HEAD_SHAPE)
    keys = k.clone()
    found = call(q, k, v, projections=projections, head_shape=HEAD_SHAPE)
    assert found.data_ptr() == q.data_ptr()
    assert torch.equal(k, keys)
    assert found.dtype == LOW
    assert (found.double() - expected).norm() / expected.norm() < 1e-3
    assert call.kept_pairs() == exact.kept_pairs()


@interpreted
def test_rows_beyond_two_to_the_31_elements_are_addressed_right(tmp_path: Path) -> None:
    """Rows as far apart as the last of 190,000 fused rows: a 32-bit product of row and stride would read elsewhere."""
    q, k, v = random_qkv()
    row_stride = 190_000 * 3 * 56 * 128 // LAYOUT.rows
    flat = torch.from_file(str(tmp_path / "rows"), shared=True, size=LAYOUT.rows * row_stride, dtype=LOW)
    shape, strides = q.shape, (row_stride, HEAD_DIM, 1)
    far = [flat.as_strided(shape, strides, side * HEADS * HEAD_DIM) for side in range(3)]
    for view, values in zip(far, (q, k, v), strict=True):
        view.copy_(values)
    call = fast.prepare_call("", tiling(), LAYOUT, triton_attend.attend_kept, triton_attend.AttendConfig())
    near = call(q.contiguous(), k, v, projections=None, head_shape=HEAD_SHAPE)
    assert torch.equal(call(*far, projections=None, head_shape=HEAD_SHAPE), near)
