"""How the released video VAE lays square tiles over a canvas, and how decoded tiles become one picture again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from attrs import frozen

ROWS, COLUMNS = -2, -1


@frozen(kw_only=True)
class TileAxis:
    """One axis of a canvas in pixels. Tile i covers [starts[i], starts[i] + size); `overlaps[i]` lie between i, i + 1.

    Tiles never differ in size; an axis that one tile covers is one tile of its own length.
    """

    starts: tuple[int, ...]
    size: int
    overlaps: tuple[int, ...]


def tile_axis(length: int, *, tile: int, least_overlap: int, step: int) -> TileAxis:
    """As few tiles as cover `length`; what they cover too much widens the overlaps, first ones first, `step` a time."""
    if length <= tile:
        return TileAxis(starts=(0,), size=length, overlaps=())
    seams = -(-(length - least_overlap) // (tile - least_overlap)) - 1
    each, more = divmod(((seams + 1) * tile - seams * least_overlap - length) // step, seams)
    overlaps = tuple(least_overlap + step * (each + (seam < more)) for seam in range(seams))
    starts = tuple(seam * tile - sum(overlaps[:seam]) for seam in range(seams + 1))
    return TileAxis(starts=starts, size=tile, overlaps=overlaps)


@frozen(kw_only=True)
class TileGrid:
    """The tiles of one canvas, row by row; `ratio` pixels a latent."""

    rows: TileAxis
    columns: TileAxis
    ratio: int

    @classmethod
    def of(cls, vae: Any, latents: torch.Tensor) -> TileGrid:
        """`latents` [1, C, T, h, w] under the tiling that `vae` was released with."""
        height, width = (side * vae.spatial_compression_ratio for side in latents.shape[-2:])
        return cls(
            rows=tile_axis(
                height,
                tile=vae.tile_sample_min_height,
                least_overlap=vae.tile_sample_min_overlap_height,
                step=vae.spatial_compression_ratio,
            ),
            columns=tile_axis(
                width,
                tile=vae.tile_sample_min_width,
                least_overlap=vae.tile_sample_min_overlap_width,
                step=vae.spatial_compression_ratio,
            ),
            ratio=vae.spatial_compression_ratio,
        )

    def __len__(self) -> int:
        return len(self.rows.starts) * len(self.columns.starts)

    def cut(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        """Views of `latents` [1, C, t, h, w], all of one shape."""
        height, width = self.rows.size // self.ratio, self.columns.size // self.ratio
        for top in self.rows.starts:
            for left in self.columns.starts:
                y, x = top // self.ratio, left // self.ratio
                yield latents[..., y : y + height, x : x + width]

    def stitch(self, tiles: Sequence[torch.Tensor]) -> torch.Tensor:
        """Tiles [1, 3, f, size, size] -> [1, 3, f, H, W], in the tiles' dtype.

        A tile's top is cross-faded with the tile above, then its left with the tile to the left, each as it was
        decoded: where four tiles meet, this order is part of the released pixels.
        """
        height, width = (axis.starts[-1] + axis.size for axis in (self.rows, self.columns))
        canvas = tiles[0].new_empty((*tiles[0].shape[:-2], height, width))
        across = len(self.columns.starts)
        for number, decoded in enumerate(tiles):
            tile = decoded
            row, column = divmod(number, across)
            if row:
                tile = cross_fade(tiles[number - across], tile, self.rows.overlaps[row - 1], axis=ROWS)
            if column:
                tile = cross_fade(tiles[number - 1], tile, self.columns.overlaps[column - 1], axis=COLUMNS)
            # What lies in the next tiles' overlaps is overwritten by them.
            top, left = self.rows.starts[row], self.columns.starts[column]
            canvas[..., top : top + self.rows.size, left : left + self.columns.size] = tile
        return canvas


def cross_fade(before: torch.Tensor, after: torch.Tensor, extent: int, *, axis: int) -> torch.Tensor:
    """The end of `before` fades out over the first `extent` of `after`, linearly, in the decoder's own dtype."""
    shape = [1] * after.ndim
    shape[axis] = extent
    rising = (torch.arange(extent, device=after.device, dtype=after.dtype) / extent).view(shape)
    ending = before.narrow(axis, before.shape[axis] - extent, extent)
    faded = ending * (1 - rising) + after.narrow(axis, 0, extent) * rising
    return torch.cat([faded, after.narrow(axis, extent, after.shape[axis] - extent)], dim=axis)
