"""The named ways to merge planes; all give equal bytes."""

from __future__ import annotations

from enum import StrEnum

from vflash_adapters.weights.sidecar.merge_numba import NumbaMerge
from vflash_adapters.weights.sidecar.merge_numpy import NumpyMerge
from vflash_adapters.weights.sidecar.planes import PlaneMerge


class MergeChoice(StrEnum):
    NUMBA = "numba"
    NUMPY = "numpy"


def make_merge(choice: MergeChoice) -> PlaneMerge:
    """Raises `UnsupportedError` where the named one is not installed; there is no silent other choice."""
    return NumbaMerge() if choice is MergeChoice.NUMBA else NumpyMerge()
