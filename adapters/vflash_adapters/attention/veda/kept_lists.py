"""Kept tiles as lists on the device, in the form the attention kernels walk.

A tile whose 128 rows are all real is listed by its number. Of a partial tile only the quarters (32 rows) that hold real
rows are listed, each as `quarter number * 64 + real rows in it`: ragged edges then cost little more than their rows.
Every query tile is one item of work. `items` int32 [heads * (n_global + most_video), 8] says for each: head, row of its
tile in the flattened `Tiling.rows`, real query rows, where its full tiles start in `lists`, how many, where its
quarters start, how many, and how many blocks of 128 keys they make (0: no such tile, nothing to do).
Query tiles that attend to everything take about ten times as long as the others, so they are the first items; they
share one static list per tile shape. The others follow head by head, so that the keys in use at one time fit the cache.
"""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen

from vflash_adapters.attention.veda.tiles import TILE_ROWS, TileLayout
from vflash_adapters.attention.veda.tiling import Tiling
from vflash_ports.errors import UnsupportedError

QUARTER_ROWS = 32
QUARTERS = TILE_ROWS // QUARTER_ROWS
CODE = 64
FIELDS = 8


@frozen(kw_only=True, eq=False)
class KeptLists:
    """`lists` int32: the static lists, then `full_room` + `quarter_room` entries for each head and video query tile.

    `everything` int32 [P, 4]: by tile shape, the list fields of an item that keeps all.
    """

    lists: torch.Tensor
    items: torch.Tensor
    everything: torch.Tensor
    first: int
    full_room: int
    quarter_room: int
    heads: int
    n_global: int
    most_video: int

    def item(self, head: int, tile: int, layout: TileLayout) -> int:
        """The number of a query tile among the items."""
        if tile >= layout.n_video:
            return head * self.n_global + tile - layout.n_video
        return self.heads * self.n_global + head * self.most_video + tile


def allocate_lists(tiling: Tiling, heads: int) -> KeptLists:
    """Room for what the budgets keep; nothing here depends on the data."""
    static, everything = _static_lists(tiling)
    n_global, most_video = tiling.layouts[0].n_global, max(layout.n_video for layout in tiling.layouts)
    most_kept = int(tiling.keep.sum(-1).max()) + n_global
    partial = max(int((layout.valid < TILE_ROWS).sum()) for layout in tiling.layouts)
    full_room, quarter_room = most_kept, QUARTERS * min(most_kept, partial)
    entries = len(static) + heads * most_video * (full_room + quarter_room)
    if entries >= 2**31:
        raise UnsupportedError(f"Veda's lists of kept tiles would need {entries} entries; give a smaller budget")
    device = tiling.rows.device
    lists = torch.zeros(entries, dtype=torch.int32, device=device)
    lists[: len(static)] = torch.tensor(static, dtype=torch.int32, device=device)
    return KeptLists(
        lists=lists,
        items=torch.zeros(heads * (n_global + most_video), FIELDS, dtype=torch.int32, device=device),
        everything=torch.tensor(everything, dtype=torch.int32, device=device),
        first=len(static),
        full_room=full_room,
        quarter_room=quarter_room,
        heads=heads,
        n_global=n_global,
        most_video=most_video,
    )


def kept_mask(kept: KeptLists, tiling: Tiling, head_shape: torch.Tensor) -> torch.Tensor:
    """The lists as a bool [H, N, N], for checks; waits for the device."""
    lists, items = kept.lists.tolist(), kept.items.tolist()
    mask = torch.zeros(kept.heads, tiling.tiles, tiling.tiles, dtype=torch.bool)
    for head, shape in enumerate(head_shape.tolist()):
        layout = tiling.layouts[shape]
        for tile in range(layout.n_tiles):
            full, n_full, quarters, n_quarters = items[kept.item(head, tile, layout)][3:7]
            mask[head, tile, lists[full : full + n_full]] = True
            mask[head, tile, [code // CODE // QUARTERS for code in lists[quarters : quarters + n_quarters]]] = True
    return mask


def _static_lists(tiling: Tiling) -> tuple[list[int], list[list[int]]]:
    static: list[int] = []
    everything: list[list[int]] = []
    for layout in tiling.layouts:
        full, quarters = _all_tiles(layout)
        everything.append([len(static), len(full), len(static) + len(full), len(quarters)])
        static += full + quarters
    return static, everything


def _all_tiles(layout: TileLayout) -> tuple[list[int], list[int]]:
    full = np.flatnonzero(layout.valid == TILE_ROWS).tolist()
    codes = [
        (tile * QUARTERS + start // QUARTER_ROWS) * CODE + min(QUARTER_ROWS, int(layout.valid[tile]) - start)
        for tile in np.flatnonzero(layout.valid < TILE_ROWS).tolist()
        for start in range(0, int(layout.valid[tile]), QUARTER_ROWS)
    ]
    return full, codes
