"""A small sparse attention with a known answer, run on a device before anything is entrusted to it."""

from __future__ import annotations

import torch

from vflash_adapters.attention.naive import NaiveAttention
from vflash_adapters.attention.veda.budget import Budget, BudgetKind
from vflash_adapters.attention.veda.kernels import VedaKernels
from vflash_adapters.attention.veda.plans import Plan
from vflash_adapters.attention.veda.predictor import Projections
from vflash_adapters.attention.veda.reference import ReferenceKernels
from vflash_adapters.attention.veda.tiling import build_tiling, tiled_spans
from vflash_ports.attention import AttentionLayout, Segment, SegmentKind
from vflash_ports.errors import UnsupportedError

HEADS = 2
TOLERANCE = 0.02
"""Of the largest value, for 16-bit arithmetic."""


def check_kernels(kernels: VedaKernels, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """Raises `UnsupportedError` if the kernels ignore the kept list, or differ from the float32 reference.

    Partial tiles, a tiled reference, global rows, strided inputs and two tile shapes all take part.
    `torch.OutOfMemoryError` passes through.
    """
    layout = self_test_layout(device, dtype, head_dim)
    q, k, v, projections = _inputs(layout)
    spans = tiled_spans(layout, tile_conditions=True)
    plan = Plan(
        name="self-test", grid=spans.target_grid, shapes=((4, 4, 8), (2, 8, 8)), head_shape=((0, 1),) * layout.blocks
    )
    target, reference = (Budget(kind=BudgetKind.TILES, value=count) for count in (2, 1))
    tiling = build_tiling(spans, plan, target, reference, device)
    head_shape = torch.tensor(plan.head_shape[0], dtype=torch.int32, device=device)

    exact = [x.float() for x in (q, k, v)]
    sparse = ReferenceKernels().prepare(tiling, layout)(*exact, projections=projections, head_shape=head_shape)
    dense = NaiveAttention().prepare(layout)(*exact, block=0, evaluation=0)

    where = f"Veda kernels {kernels.name!r} failed their self-test on {device} in {dtype}"
    cure = "choose an exact attention backend and report the device"
    call = kernels.prepare(tiling, layout)
    try:
        found = call(q, k, v, projections=projections, head_shape=head_shape).float()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler or a driver raises means that this device cannot run them
        raise UnsupportedError(f"{where}: {error}; {cure}") from error
    if not (found - dense).norm() > (sparse - dense).norm() / 2:
        raise UnsupportedError(f"{where}: they attend to tiles that were not kept; {cure}")
    worst, allowed = float((found - sparse).abs().max()), TOLERANCE * max(1.0, float(sparse.abs().max()))
    if not worst <= allowed:
        raise UnsupportedError(f"{where}: error {worst:.3g} exceeds {allowed:.3g}; {cure}")


def self_test_layout(device: torch.device, dtype: torch.dtype, head_dim: int) -> AttentionLayout:
    """558 rows: text 70, a reference 1x8x16, audio 40, a target 5x8x8 whose last tiles are partial."""
    kinds = (
        (SegmentKind.TEXT, 70, None),
        (SegmentKind.CONDITION_VIDEO, 128, (1, 8, 16)),
        (SegmentKind.TARGET_AUDIO, 40, None),
        (SegmentKind.TARGET_VIDEO, 320, (5, 8, 8)),
    )
    segments: list[Segment] = []
    for kind, rows, grid in kinds:
        start = segments[-1].start + segments[-1].rows if segments else 0
        segments.append(Segment(kind=kind, start=start, rows=rows, grid=grid))
    return AttentionLayout(
        segments=tuple(segments),
        rows=558,
        heads=HEADS,
        head_dim=head_dim,
        blocks=1,
        evaluations=1,
        device=device,
        dtype=dtype,
    )


def _inputs(layout: AttentionLayout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Projections]:
    generator = torch.Generator().manual_seed(0)
    D = layout.head_dim
    fused = torch.randn(layout.rows, 3, layout.heads, D, generator=generator) * 1.5
    q, k, v = fused.to(layout.device, layout.dtype).unbind(1)
    sides = torch.randn(2, layout.heads, 3 * D, D, generator=generator).to(layout.device, torch.bfloat16) * 0.1
    return q, k, v, Projections(q=sides[0], k=sides[1])
