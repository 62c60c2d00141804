"""Plans: which tile shape each head of each block uses on a given grid. Plain Python, no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from vflash_adapters.attention.veda.tiles import TILE_ROWS, Extents, best_shape, tile_count
from vflash_ports.errors import CheckpointError


@frozen(kw_only=True)
class Plan:
    """`head_shape[block][head]` indexes `shapes`; found for the token grid `grid`."""

    name: str
    grid: Extents
    shapes: tuple[Extents, ...]
    head_shape: tuple[tuple[int, ...], ...]

    def mirrored(self) -> Plan:
        """The same plan for a picture turned on its side: height and width change places."""
        swap = [(t, w, h) for t, h, w in self.shapes]
        return evolve(self, grid=(self.grid[0], self.grid[2], self.grid[1]), shapes=tuple(swap))


@frozen(kw_only=True)
class ChosenPlan:
    """`exact` only if the plan was made for this very grid."""

    plan: Plan
    exact: bool
    mirrored: bool = False


def choose_plan(plans: Sequence[Plan], grid: Extents) -> ChosenPlan:
    """The plan of this grid; else of this picture at the nearest length (the shorter of two equally near).

    Else, over all plans and their mirrors, the nearest aspect ratio, then length, then the fewest tiles on this grid.
    """
    for plan in plans:
        if plan.grid == grid:
            return ChosenPlan(plan=plan, exact=True)
    if same_picture := [plan for plan in plans if plan.grid[1:] == grid[1:]]:
        nearest = min(same_picture, key=lambda plan: (abs(plan.grid[0] - grid[0]), plan.grid[0]))
        return ChosenPlan(plan=nearest, exact=False)
    candidates = [(plan, False) for plan in plans] + [(plan.mirrored(), True) for plan in plans]
    plan, mirrored = min(candidates, key=lambda candidate: _distance(candidate[0], grid))
    return ChosenPlan(plan=plan, exact=False, mirrored=mirrored)


def uniform_plan(grid: Extents, *, blocks: int, heads: int) -> Plan:
    """One shape for every head: what is used where no predictor brings plans."""
    return Plan(name="uniform", grid=grid, shapes=(best_shape(grid),), head_shape=((0,) * heads,) * blocks)


def parse_plans(text: str, *, blocks: int, heads: int, source: str) -> tuple[Plan, ...]:
    """The `plans` entry of a predictor's metadata; `source` names the file in errors."""
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{source}: metadata 'plans' is not JSON ({error}); download the file again") from error
    if not isinstance(raw, dict) or not raw:
        raise CheckpointError(f"{source}: metadata 'plans' must be a non-empty object of geometry name to plan")
    return tuple(_parse_plan(name, entry, blocks, heads, source) for name, entry in raw.items())


def parse_shape(text: object) -> Extents:
    """\"8x4x4\" -> (8, 4, 4): powers of two whose product is 128. Raises `ValueError` otherwise."""
    parts = text.split("x") if isinstance(text, str) else []
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
        raise ValueError(f"tile shape {text!r} is not of the form TxHxW")
    t, h, w = (int(part) for part in parts)
    if t * h * w != TILE_ROWS:
        raise ValueError(f"tile shape {text!r} does not hold {TILE_ROWS} rows")
    return t, h, w


def _parse_plan(name: str, entry: Any, blocks: int, heads: int, source: str) -> Plan:
    try:
        shapes = tuple(parse_shape(text) for text in _field(entry, "shapes", list))
        grid = _grid(_field(entry, "grid", list))
        head_shape = _head_shape(_field(entry, "head_shape", list), len(shapes), blocks, heads)
    except ValueError as error:
        raise CheckpointError(f"{source}: plan {name!r}: {error}") from error
    return Plan(name=name, grid=grid, shapes=shapes, head_shape=head_shape)


def _field(entry: Any, key: str, kind: type[list[Any]]) -> list[Any]:
    value = entry.get(key) if isinstance(entry, Mapping) else None
    if not isinstance(value, kind):
        raise ValueError(f"field {key!r} must be a list")
    return value


def _grid(values: list[Any]) -> Extents:
    if len(values) != 3 or not all(type(value) is int and 0 < value <= 65536 for value in values):
        raise ValueError(f"grid {values!r} must be three positive whole numbers")
    return values[0], values[1], values[2]


def _head_shape(table: list[Any], shapes: int, blocks: int, heads: int) -> tuple[tuple[int, ...], ...]:
    if len(table) != blocks or not all(isinstance(row, list) and len(row) == heads for row in table):
        raise ValueError(f"head_shape must be {blocks} lists of {heads} shape indices")
    if not all(type(index) is int and 0 <= index < shapes for row in table for index in row):
        raise ValueError(f"head_shape indices must be whole numbers below {shapes}")
    return tuple(tuple(row) for row in table)


def _distance(plan: Plan, grid: Extents) -> tuple[float, int, int]:
    aspect = math.log(plan.grid[1] / plan.grid[2]) - math.log(grid[1] / grid[2])
    tiles = sum(tile_count(grid, shape) for shape in plan.shapes)
    return round(abs(aspect), 3), abs(plan.grid[0] - grid[0]), tiles
