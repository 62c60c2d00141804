"""Tile geometry: how a grid of video tokens becomes tiles of 128 rows. Plain numbers and numpy, no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Extents = tuple[int, int, int]
"""(T, H, W): a grid in tokens, or the extents of a tile."""

TILE_ROWS = 128
PAD = -1

LEGAL_SHAPES: tuple[Extents, ...] = tuple((2**t, 2**h, 2 ** (7 - t - h)) for t in range(8) for h in range(8 - t))


@frozen(kw_only=True)
class Span:
    """Rows [start, start + T*H*W) of the packed sequence, row-major over `grid`, cut into tiles of `shape`."""

    start: int
    grid: Extents
    shape: Extents

    @property
    def rows(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def tiles(self) -> int:
        return tile_count(self.grid, self.shape)


@frozen(kw_only=True, eq=False)
class TileLayout:
    """A packed sequence in tile order: tiled references, then the target, then the global rows.

    `rows` int32 [n_tiles, 128] holds packed row numbers, real rows first and `PAD` after them; `valid` int32 [n_tiles]
    counts the real ones. Tiles [0, n_ref) are references, [n_ref, n_video) the target, [n_video, n_tiles) global.
    """

    rows: NDArray[np.int32]
    valid: NDArray[np.int32]
    n_ref: int
    n_video: int

    @property
    def n_tiles(self) -> int:
        return len(self.valid)

    @property
    def n_global(self) -> int:
        return self.n_tiles - self.n_video


def tile_layout(packed_rows: int, references: Sequence[Span], target: Span) -> TileLayout:
    """Every packed row once: the spans' rows in tiles, all others in sequence order as global tiles."""
    spans = [*references, target]
    is_global = np.ones(packed_rows, dtype=bool)
    for span in spans:
        is_global[span.start : span.start + span.rows] = False
    tiles = np.concatenate([*map(_span_tiles, spans), _chunked(np.flatnonzero(is_global))]).astype(np.int32)
    return TileLayout(
        rows=tiles,
        valid=(tiles != PAD).sum(axis=1, dtype=np.int32),
        n_ref=sum(span.tiles for span in references),
        n_video=sum(span.tiles for span in spans),
    )


def tile_count(grid: Extents, shape: Extents) -> int:
    """Tiles of `shape` that cover `grid`, the ragged ones included."""
    return int(np.prod([-(-size // extent) for size, extent in zip(grid, shape, strict=True)]))


def best_shape(grid: Extents) -> Extents:
    """The shape for a grid no plan speaks of: fewest tiles, then most cubic, then lexicographic.

    Shapes that fit inside the grid on every axis are preferred to those that do not.
    """
    fitting = [shape for shape in LEGAL_SHAPES if all(s <= g for s, g in zip(shape, grid, strict=True))]
    return min(fitting or LEGAL_SHAPES, key=lambda shape: (tile_count(grid, shape), max(shape) / min(shape), shape))


def _span_tiles(span: Span) -> NDArray[np.int64]:
    """[tiles, 128]: boxes in the order h, w, t (t innermost); rows inside t, h, w, the real ones moved to the front."""
    (T, H, W), (bt, bh, bw) = span.grid, span.shape
    nt, nh, nw = (-(-size // extent) for size, extent in zip(span.grid, span.shape, strict=True))
    padded = np.full((nt * bt, nh * bh, nw * bw), PAD, dtype=np.int64)
    padded[:T, :H, :W] = span.start + np.arange(span.rows).reshape(T, H, W)
    boxes = padded.reshape(nt, bt, nh, bh, nw, bw).transpose(2, 4, 0, 1, 3, 5).reshape(-1, TILE_ROWS)
    front = np.argsort(boxes == PAD, axis=1, kind="stable")
    return np.take_along_axis(boxes, front, axis=1)


def _chunked(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """[tiles, 128] of consecutive rows, the last tile padded."""
    tiles = np.full((-(-len(rows) // TILE_ROWS), TILE_ROWS), PAD, dtype=np.int64)
    tiles.reshape(-1)[: len(rows)] = rows
    return tiles
