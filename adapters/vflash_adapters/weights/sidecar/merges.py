"""The named ways to merge planes; all give equal bytes."""

from __future__ import annotations

from enum import StrEnum

from vflash_adapters.weights.sidecar.merge_numba import NumbaMerge
from vflash_adapters.weights.sidecar.merge_numpy import NumpyMerge
from vflash_adapters.weights.sidecar.planes import PlaneMerge
from vflash_ports.errors import ContractError


class MergeChoice(StrEnum):
    NUMBA = "numba"
    NUMPY = "numpy"


def make_merge(choice: MergeChoice) -> PlaneMerge:
    """By member or by name. Raises `UnsupportedError` where the named one is not installed; there is no silent other
    choice."""
    return NumbaMerge() if merge_choice(choice) is MergeChoice.NUMBA else NumpyMerge()


def merge_choice(name: object) -> MergeChoice:
    """Raises `ContractError` for an unknown name."""
    try:
        return MergeChoice(str(name))
    except ValueError:
        raise ContractError(f"merge must be {' or '.join(MergeChoice)}, not {name!r}") from None
