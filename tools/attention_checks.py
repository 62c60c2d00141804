"""Compare every Veda kernel with the torch reference on one device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from attention_cases import SHAPES, Case, random_plan, random_projections, random_qkv
from vflash_adapters.attention.veda.budget import Budget, BudgetKind
from vflash_adapters.attention.veda.device_kernels import device_kernels
from vflash_adapters.attention.veda.fast import FastSparseCall
from vflash_adapters.attention.veda.kept_lists import kept_mask
from vflash_adapters.attention.veda.kernels import SparseCall
from vflash_adapters.attention.veda.reference import attend_kept, pooled_features
from vflash_adapters.attention.veda.reference import select_tiles as reference_select
from vflash_adapters.attention.veda.scores import block_logits
from vflash_adapters.attention.veda.self_test import check_kernels
from vflash_adapters.attention.veda.tiling import Tiling, build_tiling, tiled_spans
from vflash_adapters.attention.veda.triton_pool import pool_tiles
from vflash_adapters.attention.veda.triton_score import block_logits as fast_logits
from vflash_ports.attention import AttentionLayout

CHECKED = (
    Case(name="ragged", grid=(5, 9, 13), audio_rows=31, text_rows=70, heads=len(SHAPES)),
    Case(name="even", grid=(8, 8, 16), audio_rows=64, text_rows=64, heads=len(SHAPES)),
    Case(name="long", grid=(37, 8, 14), audio_rows=414, heads=len(SHAPES)),
    Case(name="narrow heads", grid=(5, 9, 13), audio_rows=31, text_rows=70, heads=len(SHAPES), head_dim=64),
)


def check_all(device: torch.device) -> dict[str, dict[str, float]]:
    """Relative errors by case; raises `AssertionError` where one exceeds bfloat16's rounding."""
    kernels = device_kernels(device)
    check_kernels(kernels, device, torch.bfloat16, 128)
    return {case.name: check_case(case, device, kernels.prepare) for case in CHECKED}


def check_case(
    case: Case, device: torch.device, prepare: Callable[[Tiling, AttentionLayout], SparseCall]
) -> dict[str, float]:
    layout = case.layout(device)
    spans = tiled_spans(layout, tile_conditions=False)
    budget = Budget(kind=BudgetKind.RATIO, value=0.25)
    tiling = build_tiling(spans, random_plan(case), budget, None, device)
    head_shape = torch.arange(case.heads, dtype=torch.int32, device=device)
    q, k, v = random_qkv(case, device)
    projections = random_projections(case, device)

    call = prepare(tiling, layout)
    assert isinstance(call, FastSparseCall)
    found = call(q.clone(), k, v, projections=projections, head_shape=head_shape)
    pooled = pool_tiles(q, k, tiling, head_shape)
    expected = torch.stack([pooled_features(x, tiling, head_shape) for x in (q, k)])
    logits = fast_logits(pooled, projections)
    mask = reference_select(logits, tiling, head_shape)
    attended = attend_kept(q.float(), k.float(), v.float(), mask, tiling=tiling, head_shape=head_shape)
    errors = {
        "pool": relative(pooled, expected),
        "score": relative(logits, block_logits(pooled[0], pooled[1], projections)),
        "select": float((kept_mask(call.kept, tiling, head_shape) != mask.cpu()).sum()),
        "attend": relative(found.float(), attended),
    }
    assert errors["pool"] < 1e-6, (case.name, errors)
    assert errors["score"] < 1e-5, (case.name, errors)
    assert errors["select"] == 0, (case.name, errors)
    assert errors["attend"] < 6e-3, (case.name, errors)
    return errors


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
