"""Veda from plain settings, as the composition root has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vflash_adapters.attention.veda.adapter import VedaAttention
from vflash_adapters.attention.veda.budget import parse_budget
from vflash_adapters.attention.veda.device_kernels import named_kernels
from vflash_ports.attention import Attention


def open_veda(
    predictor: Path | None,
    dense: Attention,
    *,
    kernels: str,
    dense_edge_layers: int,
    dense_steps: Sequence[int],
    target_budget: str | None,
    reference_budget: str | None,
) -> VedaAttention:
    """Names and budgets are checked here; the predictor file, the model and the device in `prepare`."""
    return VedaAttention(
        predictor=predictor,
        dense=dense,
        kernels=named_kernels(kernels),
        dense_edge_layers=dense_edge_layers,
        dense_steps=dense_steps,
        target_budget=parse_budget(target_budget) if target_budget else None,
        reference_budget=parse_budget(reference_budget) if reference_budget else None,
    )
