"""How many key tiles each query tile keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from attrs import field, frozen
from attrs.validators import instance_of

from vflash_ports.errors import ContractError


class BudgetKind(StrEnum):
    """`ratio`: of the dense cost, whatever the padding; `tiles`: an absolute count."""

    RATIO = "ratio"
    TILES = "tiles"


@frozen(kw_only=True)
class Budget:
    """`value` is a ratio in (0, 1], or a count of tiles of at least 1."""

    kind: BudgetKind = field(converter=BudgetKind)
    value: float = field(converter=float, validator=instance_of(float))

    def __attrs_post_init__(self) -> None:
        low, high = (0.0, 1.0) if self.kind is BudgetKind.RATIO else (1.0, math.inf)
        if not (low < self.value <= high or (self.kind is BudgetKind.TILES and self.value == low)):
            raise ContractError(
                f"Veda budget {self.kind}={self.value}: give a ratio above 0 and at most 1, or at least 1 tile"
            )

    def keeps_all(self, *, ideal: int, columns: int) -> bool:
        return self._mean_kept(ideal=ideal, columns=columns) >= columns

    def kept(self, *, ideal: int, columns: int, query_tiles: int) -> Sequence[int]:
        """Key tiles kept by each of `query_tiles` rows, out of `columns` tiles that hold `ideal` tiles' worth of rows.

        A fractional budget is met on average: the remainder is spread evenly over the rows, the same at every call.
        """
        mean = self._mean_kept(ideal=ideal, columns=columns)
        if mean >= columns:
            return [columns] * query_tiles
        low = min(max(math.floor(mean), 1), columns)
        return [min(low + extra, columns) for extra in remainder_pattern(mean - low, query_tiles)]

    def _mean_kept(self, *, ideal: int, columns: int) -> float:
        if self.kind is BudgetKind.TILES:
            return self.value
        if self.value == 1.0:
            return float(columns)
        # Equal cost: padding raises the number of tiles, so each row keeps fewer of them.
        return self.value * ideal**2 / columns


def parse_budget(text: str) -> Budget:
    """ "ratio=0.1" or "tiles=32". Raises `ContractError` for anything else."""
    kind, _, value = text.partition("=")
    try:
        return Budget(kind=BudgetKind(kind), value=float(value))
    except ValueError as error:
        raise ContractError(f"Veda budget {text!r}: give ratio=0.1 or tiles=32, with your number") from error


def remainder_pattern(remainder: float, rows: int) -> Sequence[int]:
    """1 where row r takes one tile more, so that the rows up to r took floor((r + 1) * remainder) in all."""
    fraction = round(min(max(remainder, 0.0), 1.0), 12)
    return [int(math.floor((row + 1) * fraction) > math.floor(row * fraction)) for row in range(rows)]
