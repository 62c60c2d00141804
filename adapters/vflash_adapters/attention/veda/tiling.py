"""The tile tables of one request, built once in `prepare` and kept on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from vflash_adapters.attention.veda.budget import Budget
from vflash_adapters.attention.veda.plans import Plan
from vflash_adapters.attention.veda.tiles import PAD, TILE_ROWS, Extents, Span, TileLayout, best_shape, tile_layout
from vflash_ports.attention import AttentionLayout, Segment, SegmentKind
from vflash_ports.errors import ContractError


@frozen(kw_only=True)
class Spans:
    """What is tiled: the target video and, for predictors trained on them, the visual references before it."""

    rows: int
    target_start: int
    target_grid: Extents
    references: tuple[Span, ...]

    def layout(self, shape: Extents) -> TileLayout:
        return tile_layout(self.rows, self.references, self._target(shape))

    def ideal_tiles(self) -> tuple[int, int]:
        """Full tiles that the real rows of the references and of the target would fill."""
        reference_rows = sum(span.rows for span in self.references)
        target_rows = int(np.prod(self.target_grid))
        return -(-reference_rows // TILE_ROWS), -(-target_rows // TILE_ROWS)

    def _target(self, shape: Extents) -> Span:
        return Span(start=self.target_start, grid=self.target_grid, shape=shape)


@frozen(kw_only=True, eq=False)
class Tiling:
    """One row per tile shape of the plan (P of them), padded to the largest count of tiles (N).

    `rows` int32 [P, N, 128] packed row numbers, PAD after the real ones; `valid` int32 [P, N] real rows, 0 beyond a
    shape's tiles; `keep` int32 [P, N, 2] tiles kept by each video query tile among references and target;
    `sizes` int32 [P, 3]: n_ref, n_video, n_tiles, the same numbers as `layouts`; all on the device.
    """

    layouts: tuple[TileLayout, ...]
    rows: torch.Tensor
    valid: torch.Tensor
    keep: torch.Tensor
    sizes: torch.Tensor
    keeps_all: bool

    @property
    def tiles(self) -> int:
        return self.rows.shape[1]


def tiled_spans(layout: AttentionLayout, *, tile_conditions: bool) -> Spans:
    """Raises `ContractError` for a layout without exactly one target video whose grid matches its rows."""
    targets = [segment for segment in layout.segments if segment.kind is SegmentKind.TARGET_VIDEO]
    if len(targets) != 1:
        raise ContractError(f"Veda attention needs one target video in the packed sequence, found {len(targets)}")
    references = [
        Span(start=segment.start, grid=_grid(segment), shape=best_shape(_grid(segment)))
        for segment in layout.segments
        if tile_conditions and segment.kind is SegmentKind.CONDITION_VIDEO
    ]
    return Spans(
        rows=layout.rows,
        target_start=targets[0].start,
        target_grid=_grid(targets[0]),
        references=tuple(references),
    )


def build_tiling(spans: Spans, plan: Plan, target: Budget, reference: Budget | None, device: torch.device) -> Tiling:
    layouts = tuple(spans.layout(shape) for shape in plan.shapes)
    most = max(layout.n_tiles for layout in layouts)
    ideal = spans.ideal_tiles()
    keep = [_kept(layout, ideal, target, reference) for layout in layouts]
    sizes = np.array([(layout.n_ref, layout.n_video, layout.n_tiles) for layout in layouts], dtype=np.int32)
    return Tiling(
        layouts=layouts,
        rows=_stacked([layout.rows for layout in layouts], most, PAD, device),
        valid=_stacked([layout.valid for layout in layouts], most, 0, device),
        keep=_stacked(keep, most, 0, device),
        sizes=torch.from_numpy(sizes).to(device),
        keeps_all=all(_keeps_all(layout, ideal, target, reference) for layout in layouts),
    )


def _kept(layout: TileLayout, ideal: tuple[int, int], target: Budget, reference: Budget | None) -> NDArray[np.int32]:
    """int32 [n_video, 2]: by query tile, the key tiles kept among the references and among the target."""
    columns = layout.n_video - layout.n_ref
    kept = np.zeros((layout.n_video, 2), dtype=np.int32)
    if reference is not None and layout.n_ref:
        kept[:, 0] = reference.kept(ideal=ideal[0], columns=layout.n_ref, query_tiles=layout.n_video)
    kept[:, 1] = target.kept(ideal=ideal[1], columns=columns, query_tiles=layout.n_video)
    return kept


def _keeps_all(layout: TileLayout, ideal: tuple[int, int], target: Budget, reference: Budget | None) -> bool:
    columns = layout.n_video - layout.n_ref
    references = reference is None or reference.keeps_all(ideal=ideal[0], columns=layout.n_ref)
    return references and target.keeps_all(ideal=ideal[1], columns=columns)


def _stacked(tables: Sequence[NDArray[np.int32]], length: int, fill: int, device: torch.device) -> torch.Tensor:
    stacked = np.full((len(tables), length, *tables[0].shape[1:]), fill, dtype=np.int32)
    for row, table in zip(stacked, tables, strict=True):
        row[: len(table)] = table
    return torch.from_numpy(stacked).to(device)


def _grid(segment: Segment) -> Extents:
    if segment.grid is None or int(np.prod(segment.grid)) != segment.rows:
        raise ContractError(
            f"Veda attention tiles the {segment.kind} rows, but their grid {segment.grid} does not hold the "
            f"{segment.rows} rows of the segment"
        )
    return segment.grid
