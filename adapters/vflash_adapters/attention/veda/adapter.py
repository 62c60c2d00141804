"""Veda as an attention backend: sparse in the middle blocks, exact in the first and last ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import define, field, frozen

from vflash_adapters.attention.veda.budget import Budget, BudgetKind
from vflash_adapters.attention.veda.kernels import SparseCall, VedaKernels
from vflash_adapters.attention.veda.plans import ChosenPlan, choose_plan, uniform_plan
from vflash_adapters.attention.veda.predictor import Predictor, Projections, read_predictor
from vflash_adapters.attention.veda.self_test import check_kernels
from vflash_adapters.attention.veda.tiles import TILE_ROWS
from vflash_adapters.attention.veda.tiling import Spans, Tiling, build_tiling, tiled_spans
from vflash_ports.attention import Attention, AttentionFn, AttentionLayout, AttentionReport
from vflash_ports.errors import ContractError

DEFAULT_RATIO = Budget(kind=BudgetKind.RATIO, value=0.1)


@frozen(kw_only=True, eq=False)
class VedaAttention:
    """`predictor`, a file, scores the tiles; None scores them by mean-pooled q and k (the backend 'veda-meanpool').

    Building one reads nothing: the file is checked, and its tensors are read, at the first `prepare`.

    The first and last `dense_edge_layers` blocks, and every block of the evaluations in `dense_steps`, run on `dense`.
    Budgets left at None are the predictor's; without a predictor a tenth of the dense cost.
    """

    dense: Attention
    kernels: VedaKernels
    predictor: Path | None = None
    dense_edge_layers: int = 3
    dense_steps: Collection[int] = ()
    target_budget: Budget | None = None
    reference_budget: Budget | None = None
    _read: list[Predictor] = field(factory=list, init=False)
    _tested: set[torch.device] = field(factory=set, init=False)
    _projections: dict[torch.device, dict[int, Projections]] = field(factory=dict, init=False)

    @property
    def name(self) -> str:
        return "veda-meanpool" if self.predictor is None else "veda"

    def held_bytes(self, layout: AttentionLayout) -> int:
        """The projections of the sparse blocks, and what the dense backend holds."""
        self._without_projections(layout)
        predictor = self._checked_predictor(layout)
        sparse = 0 if predictor is None else len(self._sparse_blocks(predictor)) * predictor.block_bytes
        return self.dense.held_bytes(layout) + sparse

    def prepare(self, layout: AttentionLayout) -> VedaFn:
        """Raises `ContractError` where predictor and model differ, `UnsupportedError` where the kernels cannot run."""
        prepared = self._without_projections(layout)
        prepared.projections = self._on(layout.device, self._checked_predictor(layout))
        return prepared

    def _without_projections(self, layout: AttentionLayout) -> VedaFn:
        predictor = self._checked_predictor(layout)
        dense = self.dense.prepare(layout)
        spans = tiled_spans(layout, tile_conditions=predictor is not None and predictor.tile_conditions)
        chosen = _chosen_plan(predictor, spans, layout)
        target, reference = self._budgets(predictor)
        tiling = build_tiling(spans, chosen.plan, target, reference, layout.device)
        sparse = self.kernels.prepare(tiling, layout)
        self._self_test(layout)
        head_shapes = torch.tensor(chosen.plan.head_shape, dtype=torch.int32, device=layout.device)
        return VedaFn(
            backend=self,
            layout=layout,
            dense=dense,
            sparse=sparse,
            chosen=chosen,
            spans=spans,
            tiling=tiling,
            budgets=(target, reference),
            head_shapes=head_shapes,
        )

    def _checked_predictor(self, layout: AttentionLayout) -> Predictor | None:
        if not 0 <= 2 * self.dense_edge_layers < layout.blocks:
            raise ContractError(
                f"veda_dense_edge_layers={self.dense_edge_layers} leaves no sparse block of {layout.blocks}; "
                f"give 0 to {(layout.blocks - 1) // 2}, or choose an exact backend"
            )
        if self.predictor is None:
            return None
        if not self._read:
            self._read.append(read_predictor(self.predictor))
        predictor = self._read[0]
        trained = (predictor.blocks, predictor.heads, predictor.head_dim)
        model = (layout.blocks, layout.heads, layout.head_dim)
        if model != trained:
            raise ContractError(
                f"{self.predictor} was trained for (blocks, heads, head size) {trained}, this model has {model}; "
                "give the predictor of this model, or choose the backend 'veda-meanpool'"
            )
        return predictor

    def is_dense(self, block: int, evaluation: int, blocks: int) -> bool:
        edge = self.dense_edge_layers
        return block < edge or block >= blocks - edge or evaluation in self.dense_steps

    def _budgets(self, predictor: Predictor | None) -> tuple[Budget, Budget | None]:
        if self.reference_budget is not None and not (predictor and predictor.tile_conditions):
            raise ContractError(
                "veda_reference_budget is given, but references stay dense without a predictor that was trained on "
                "tiled ones; drop the option"
            )
        if predictor is None:
            return self.target_budget or DEFAULT_RATIO, None
        reference = self.reference_budget or predictor.reference_budget
        return self.target_budget or predictor.target_budget, reference

    def _self_test(self, layout: AttentionLayout) -> None:
        if layout.device not in self._tested:
            check_kernels(self.kernels, layout.device, layout.dtype, layout.head_dim)
            self._tested.add(layout.device)

    def _on(self, device: torch.device, predictor: Predictor | None) -> Mapping[int, Projections]:
        """The sparse blocks' projections, read once and kept on the device."""
        if predictor is None:
            return {}
        if device not in self._projections:
            self._projections[device] = predictor.projections(self._sparse_blocks(predictor), device)
        return self._projections[device]

    def _sparse_blocks(self, predictor: Predictor) -> range:
        return range(self.dense_edge_layers, predictor.blocks - self.dense_edge_layers)


def _chosen_plan(predictor: Predictor | None, spans: Spans, layout: AttentionLayout) -> ChosenPlan:
    if predictor is None:
        plan = uniform_plan(spans.target_grid, blocks=layout.blocks, heads=layout.heads)
        return ChosenPlan(plan=plan, exact=True)
    return choose_plan(predictor.plans, spans.target_grid)


@define(kw_only=True, eq=False)
class VedaFn:
    """The `AttentionFn` of one request."""

    backend: VedaAttention
    layout: AttentionLayout
    dense: AttentionFn
    sparse: SparseCall
    chosen: ChosenPlan
    spans: Spans
    tiling: Tiling
    budgets: tuple[Budget, Budget | None]
    head_shapes: torch.Tensor
    projections: Mapping[int, Projections] = field(factory=dict)
    _sparse_blocks: list[int] = field(factory=list, init=False)
    _dense_blocks: set[int] = field(factory=set, init=False)

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block: int, evaluation: int
    ) -> torch.Tensor:
        if self.tiling.keeps_all or self.backend.is_dense(block, evaluation, self.layout.blocks):
            self._dense_blocks.add(block)
            return self.dense(q, k, v, block=block, evaluation=evaluation)
        self._sparse_blocks.append(block)
        return self.sparse(q, k, v, projections=self.projections.get(block), head_shape=self.head_shapes[block])

    def report(self) -> AttentionReport:
        dense = self.dense.report()
        return AttentionReport(
            backend=self.backend.name,
            exact=dense.exact and not self._sparse_blocks,
            dense_calls=dense.dense_calls,
            sparse_calls=len(self._sparse_blocks),
            details=self._details(dense),
        )

    def _details(self, dense: AttentionReport) -> dict[str, Any]:
        predictor = self.backend.predictor
        target, reference = self.budgets
        return {
            "kernels": self.sparse.name,
            "dense_backend": dense.backend,
            "dense_edge_layers": self.backend.dense_edge_layers,
            "dense_steps": sorted(self.backend.dense_steps),
            "dense_layers": sorted(self._dense_blocks),
            "predictor": None if predictor is None else str(predictor),
            "plan": self.chosen.plan.name,
            "plan_exact": self.chosen.exact,
            "plan_mirrored": self.chosen.mirrored,
            "target_grid": list(self.spans.target_grid),
            "target_budget": f"{target.kind}={target.value:g}",
            "reference_budget": f"{reference.kind}={reference.value:g}" if reference else None,
            "tiled_references": len(self.spans.references),
            **self._fractions(),
        }

    def _fractions(self) -> dict[str, float | None]:
        """Kept share of the video tile pairs; and computed tile pairs over those of a dense call without padding."""
        if not self._sparse_blocks:
            return {"kept_fraction": None, "compute_fraction": None}
        plan, heads = self.chosen.plan, self.layout.heads
        layouts = [self.tiling.layouts[shape] for block in self._sparse_blocks for shape in plan.head_shape[block]]
        kept = self.sparse.kept_pairs()
        always = sum(layout.n_global * (layout.n_tiles + layout.n_video) for layout in layouts)
        dense = len(self._sparse_blocks) * heads * (self.layout.rows / TILE_ROWS) ** 2
        return {
            "kept_fraction": kept / sum(layout.n_video**2 for layout in layouts),
            "compute_fraction": (kept + always) / dense,
        }
