"""Which rows of a stored matrix make a canonical one: a reshape and a choice, nothing else."""

from __future__ import annotations

import torch
from attrs import frozen


@frozen
class RowOrder:
    """Rows are seen as [groups, parts, n]; the parts named in `order` are kept, in that order.

    Fused QKV stored whole after whole: groups 1, parts 3. Interleaved per head: groups = heads, parts 3. Swapped gate
    and value: groups 1, parts 2, order (1, 0). Applied to the rows of a weight, or of an adapter's `up` matrix.
    """

    groups: int
    parts: int
    order: tuple[int, ...]

    @property
    def is_identity(self) -> bool:
        return self.parts == 1

    def rows(self, stored: int) -> int:
        """Rows that remain of `stored`; `stored` must divide evenly."""
        assert stored % (self.groups * self.parts) == 0
        return stored // self.parts * len(self.order)

    def fits(self, stored: int) -> bool:
        return stored % (self.groups * self.parts) == 0

    def pick(self, matrix: torch.Tensor) -> torch.Tensor:
        """matrix [rows, ...] -> [kept rows, ...]; a view where the kept rows lie together, else a copy."""
        if self.is_identity:
            return matrix
        seen = matrix.reshape(self.groups, self.parts, -1, *matrix.shape[1:])
        kept = seen[:, self.order[0]] if len(self.order) == 1 else seen[:, list(self.order)]
        return kept.reshape(-1, *matrix.shape[1:])


IDENTITY = RowOrder(1, 1, (0,))
SWAPPED_HALVES = RowOrder(1, 2, (1, 0))


def fused_qkv(part: int, heads: int | None) -> RowOrder:
    """Rows of q (0), k (1) or v (2); `heads` None: whole after whole, else interleaved per head."""
    return RowOrder(heads or 1, 3, (part,))
