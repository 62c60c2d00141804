"""Tiles, budgets and plans: plain numbers, against figures worked out independently."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash_adapters.attention.veda.budget import Budget, BudgetKind, remainder_pattern
from vflash_adapters.attention.veda.plans import Plan, choose_plan, parse_plans, parse_shape, uniform_plan
from vflash_adapters.attention.veda.tiles import LEGAL_SHAPES, PAD, Span, best_shape, tile_count, tile_layout
from vflash_ports.errors import CheckpointError, ContractError

GRID_5S = (37, 24, 42)
TILES_5S = {
    (8, 4, 4): 330,
    (2, 8, 8): 342,
    (4, 8, 4): 330,
    (8, 8, 2): 315,
    (4, 4, 8): 360,
    (8, 2, 8): 360,
    (1, 8, 16): 333,
}

grids = st.tuples(st.integers(1, 9), st.integers(1, 20), st.integers(1, 20))
shapes = st.sampled_from(LEGAL_SHAPES)


def plan(name: str, grid: tuple[int, int, int], *shapes: tuple[int, int, int]) -> Plan:
    return Plan(name=name, grid=grid, shapes=shapes or ((8, 4, 4),), head_shape=((0,),))


@pytest.mark.parametrize(("shape", "tiles"), TILES_5S.items())
def test_tile_counts_of_the_five_second_wide_canvas(shape: tuple[int, int, int], tiles: int) -> None:
    """1344x768, 37 latent frames: 37,296 tokens, ideally 292 tiles."""
    assert tile_count(GRID_5S, shape) == tiles


def test_valid_rows_of_a_real_grid() -> None:
    """4x4x8 on 37x24x42: tiles hold 8, 32 or 128 rows, and 270 of 360 are full."""
    layout = tile_layout(37 * 24 * 42, [], Span(start=0, grid=GRID_5S, shape=(4, 4, 8)))
    assert Counter(layout.valid.tolist()) == {128: 270, 32: 84, 8: 6}


def test_one_worked_layout() -> None:
    """Text 70, a reference 1x8x16, audio 40, a target 5x8x8: six tiles, the last global with 110 rows."""
    reference = Span(start=70, grid=(1, 8, 16), shape=(1, 8, 16))
    layout = tile_layout(558, [reference], Span(start=238, grid=(5, 8, 8), shape=(4, 4, 8)))
    assert layout.valid.tolist() == [128, 128, 32, 128, 32, 110]
    assert (layout.n_ref, layout.n_video, layout.n_tiles, layout.n_global) == (1, 5, 6, 1)
    assert layout.rows[2, 0] == 494  # the second tile of the target is its temporal neighbour
    assert layout.rows[5, :110].tolist() == [*range(70), *range(198, 238)]


def test_there_are_36_legal_shapes() -> None:
    """Powers of two whose product is 128."""
    assert len(set(LEGAL_SHAPES)) == 36
    assert all(np.prod(shape) == 128 for shape in LEGAL_SHAPES)


def test_a_keyframe_is_tiled_flat() -> None:
    """A single frame of 24x42 tokens takes 1x8x16 tiles, nine of them."""
    assert best_shape((1, 24, 42)) == (1, 8, 16)
    assert tile_count((1, 24, 42), (1, 8, 16)) == 9


@settings(deadline=None, max_examples=60)
@given(grid=grids, shape=shapes, before=st.integers(0, 200), after=st.integers(0, 200))
def test_every_row_lies_in_exactly_one_tile(
    grid: tuple[int, int, int], shape: tuple[int, int, int], before: int, after: int
) -> None:
    """Gathering by the table and scattering back is the identity; real rows come first in every tile."""
    span = Span(start=before, grid=grid, shape=shape)
    rows = before + span.rows + after
    layout = tile_layout(rows, [], span)
    real = layout.rows != PAD
    assert sorted(layout.rows[real].tolist()) == list(range(rows))
    assert np.array_equal(real, np.arange(128) < layout.valid[:, None])
    assert (layout.valid[: layout.n_video] > 0).all()
    assert layout.n_video == tile_count(grid, shape)


@settings(deadline=None, max_examples=40)
@given(grid=grids, shape=shapes)
def test_a_tile_is_a_box_of_the_grid(grid: tuple[int, int, int], shape: tuple[int, int, int]) -> None:
    """No two rows of a tile are further apart on an axis than the tile's extent."""
    layout = tile_layout(int(np.prod(grid)), [], Span(start=0, grid=grid, shape=shape))
    for rows, valid in zip(layout.rows, layout.valid, strict=True):
        positions = np.stack(np.unravel_index(rows[:valid], grid))
        assert (np.ptp(positions, axis=1) < shape).all()


def test_remainder_pattern() -> None:
    """0.3 over ten rows: one more on rows 3, 6 and 9; one half: on every second row."""
    assert np.flatnonzero(remainder_pattern(0.3, 10)).tolist() == [3, 6, 9]
    assert np.flatnonzero(remainder_pattern(0.5, 8)).tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize(("tiles", "kept"), [(330, 25.84), (342, 24.93), (315, 27.07), (360, 23.68)])
def test_a_ratio_is_of_the_dense_cost(tiles: int, kept: float) -> None:
    """A tenth of 292 x 292 ideal pairs, whatever the padding: more tiles, fewer kept by each."""
    counts = Budget(kind=BudgetKind.RATIO, value=0.1).kept(ideal=292, columns=tiles, query_tiles=tiles)
    assert np.mean(counts) == pytest.approx(kept, abs=0.01)
    assert max(counts) - min(counts) == 1


@settings(deadline=None, max_examples=80)
@given(value=st.floats(1e-4, 1.0), columns=st.integers(1, 500), fill=st.floats(0.3, 1.0))
def test_kept_counts_are_within_the_columns(value: float, columns: int, fill: float) -> None:
    """At least one, at most all, and on average the budget wherever that is between them."""
    ideal = max(1, int(columns * fill))
    counts = Budget(kind=BudgetKind.RATIO, value=value).kept(ideal=ideal, columns=columns, query_tiles=columns)
    mean = columns if value == 1.0 else min(max(value * ideal**2 / columns, 1), columns)
    assert all(1 <= count <= columns for count in counts)
    assert sum(counts) == pytest.approx(mean * columns, abs=1 + 1e-6)


@pytest.mark.parametrize(("kind", "value"), [("ratio", 0.0), ("ratio", 1.5), ("ratio", float("nan")), ("tiles", 0.5)])
def test_a_budget_without_meaning_is_refused(kind: str, value: float) -> None:
    """The message says what is legal."""
    with pytest.raises(ContractError, match="ratio above 0"):
        Budget(kind=kind, value=value)


@pytest.mark.parametrize("kind", list(BudgetKind))
def test_one_whole_ratio_and_enough_tiles_keep_all(kind: BudgetKind) -> None:
    """A ratio of 1 keeps all columns even where padding makes them more than the ideal."""
    budget = Budget(kind=kind, value=1.0 if kind is BudgetKind.RATIO else 9)
    assert budget.keeps_all(ideal=5, columns=9)
    assert list(budget.kept(ideal=5, columns=9, query_tiles=2)) == [9, 9]


PLANS = [plan("a", (37, 24, 42)), plan("b", (72, 24, 42)), plan("c", (37, 24, 24)), plan("d", (37, 24, 32), (2, 4, 16))]


@pytest.mark.parametrize(
    ("grid", "name", "exact", "mirrored"),
    [
        ((37, 24, 42), "a", True, False),
        ((60, 24, 42), "b", False, False),  # same picture, nearest length
        ((54, 24, 42), "a", False, False),  # 17 and 18 latent frames away
        ((37, 42, 24), "a", False, True),  # the same picture on its side
        ((37, 16, 28), "a", False, False),  # nearest aspect ratio
        ((72, 48, 48), "c", False, False),
        ((37, 32, 24), "d", False, True),
    ],
)
def test_the_nearest_plan_is_chosen_and_called_inexact(
    grid: tuple[int, int, int], name: str, exact: bool, mirrored: bool
) -> None:
    """Exact grid, else same picture at the nearest length, else nearest aspect ratio, mirrors included."""
    chosen = choose_plan(PLANS, grid)
    assert (chosen.plan.name, chosen.exact, chosen.mirrored) == (name, exact, mirrored)


def test_equally_near_lengths_take_the_shorter() -> None:
    """55 latent frames lie 18 from 37 and 18 from 73."""
    assert choose_plan([plan("long", (73, 8, 8)), plan("short", (37, 8, 8))], (55, 8, 8)).plan.name == "short"


def test_a_mirror_swaps_height_and_width() -> None:
    """2x4x16 lies down as 2x16x4."""
    chosen = choose_plan(PLANS, (37, 32, 24))
    assert chosen.plan.grid == (37, 32, 24)
    assert chosen.plan.shapes == ((2, 16, 4),)


def test_the_uniform_plan_uses_one_shape() -> None:
    """For a grid that no plan speaks of: the shape with the fewest tiles."""
    uniform = uniform_plan(GRID_5S, blocks=2, heads=3)
    assert uniform.shapes == ((8, 8, 2),)
    assert uniform.head_shape == ((0, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("text", ["8x4", "8x4x5", "8x4x04x1", "-8x4x4", "8X4X4", "", None, 128, "²x8x8"])
def test_a_shape_that_is_none_is_refused(text: object) -> None:
    """Only TxHxW with a product of 128."""
    with pytest.raises(ValueError, match="tile shape"):
        parse_shape(text)


GOOD = '{"p": {"grid": [2, 4, 4], "shapes": ["8x4x4"], "head_shape": [[0, 0]]}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "non-empty object"),
        ("{}", "non-empty object"),
        (GOOD.replace("[2, 4, 4]", "[2, 4]"), "grid"),
        (GOOD.replace("[2, 4, 4]", "[2, 4, true]"), "grid"),
        (GOOD.replace("[2, 4, 4]", "[2, 4, 0]"), "grid"),
        (GOOD.replace("8x4x4", "8x4x8"), "128 rows"),
        (GOOD.replace("[[0, 0]]", "[[0]]"), "1 lists of 2"),
        (GOOD.replace("[[0, 0]]", "[[0, 1]]"), "below 1"),
        (GOOD.replace("[[0, 0]]", "[[0, -1]]"), "below 1"),
        (GOOD.replace('"shapes"', '"forms"'), "'shapes' must be a list"),
    ],
)
def test_a_damaged_plan_names_the_file_and_the_field(text: str, message: str) -> None:
    """Plans come from a downloaded file: nothing in them is trusted."""
    with pytest.raises(CheckpointError, match=f"predictor.safetensors.*{message}"):
        parse_plans(text, blocks=1, heads=2, source="predictor.safetensors")


def test_a_good_plan_is_read() -> None:
    """The counterpart of the damaged ones."""
    (read,) = parse_plans(GOOD, blocks=1, heads=2, source="predictor.safetensors")
    assert (read.name, read.grid, read.shapes, read.head_shape) == ("p", (2, 4, 4), ((8, 4, 4),), ((0, 0),))
