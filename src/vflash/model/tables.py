"""Where a schedule's modulation tables come from: computed from the checkpoint's AdaLN weights, or stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from attrs import define, field, frozen

from vflash.domain.model_facts import DenoiserFacts
from vflash.model.load import MODULATION_TABLE
from vflash.model.modulation import (
    EvaluationTimesteps,
    TimeEmbedder,
    TimestepTable,
    activated_embeddings,
    block_table,
    final_table,
)
from vflash.model.residual import moved
from vflash.model.stored_fp8 import read_dense
from vflash_ports.adapters import LowRank
from vflash_ports.weights import WeightSource

KEPT_TABLE_BYTES = 256 * 2**20
"""Modulation tables that may wait beside a new schedule's: reading a schedule's projections again costs 24 GiB."""

Plans = tuple[EvaluationTimesteps, ...]


@frozen(kw_only=True, eq=False)
class Tables:
    """Modulation of every block [evaluations, roles, 6, C], and of the output norm [evaluations, roles, 2, C]."""

    blocks: tuple[torch.Tensor, ...]
    final: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.final.nbytes + sum(table.nbytes for table in self.blocks)


class TableMaker(Protocol):
    """The tables of one schedule, on the compute device in the model's dtype."""

    def __call__(self, plans: Plans) -> Tables: ...


@frozen(kw_only=True, eq=False)
class CheckpointTables:
    """A `TableMaker` that reads each block's projection, runs it on the schedule's timesteps and drops it."""

    source: WeightSource
    auxiliary: Mapping[str, torch.Tensor]
    residuals: Mapping[str, LowRank]
    facts: DenoiserFacts
    device: torch.device
    dtype: torch.dtype

    def __call__(self, plans: Plans) -> Tables:
        aux = self.auxiliary
        embeddings = activated_embeddings(self._embedder(), plans, self.dtype, self.device)
        blocks = self._blocks(embeddings, plans)
        weight, bias = aux["norm_out.linear.weight"], aux["norm_out.linear.bias"]
        final = final_table(weight, bias, embeddings, plans, self._residual("norm_out.linear"))
        return Tables(blocks=blocks, final=final)

    def _blocks(self, embeddings: Sequence[torch.Tensor], plans: Plans) -> tuple[torch.Tensor, ...]:
        specs, tables = self.source.specs(), []
        with self.source.open() as reader:
            for block in range(self.facts.num_layers):
                name = f"transformer_blocks.{block}.adaln_proj.linear"
                weight, bias = (
                    read_dense(reader, specs, f"{name}.{part}", device=self.device, dtype=self.dtype)
                    for part in ("weight", "bias")
                )
                tables.append(block_table(weight, bias, embeddings, plans, self.facts, self._residual(name)))
        return tuple(tables)

    def _embedder(self) -> TimeEmbedder | TimestepTable:
        if MODULATION_TABLE in self.auxiliary:
            return TimestepTable(table=self.auxiliary[MODULATION_TABLE])
        first, second = (f"time_embedder.linear_{number}" for number in (1, 2))
        aux = self.auxiliary
        return TimeEmbedder(
            linear_1=(aux[f"{first}.weight"], aux[f"{first}.bias"]),
            linear_2=(aux[f"{second}.weight"], aux[f"{second}.bias"]),
            freq_dim=self.facts.freq_dim,
            residuals=(self.residuals.get(first), self.residuals.get(second)),
        )

    def _residual(self, name: str) -> LowRank | None:
        pair = self.residuals.get(name)
        return None if pair is None else moved(pair, self.device, self.dtype)


@define(kw_only=True, eq=False)
class TableCache:
    """A `TableMaker` that keeps the last schedules of another: short ones beside each other, a long one alone."""

    make: TableMaker
    _kept: dict[Plans, Tables] = field(factory=dict, init=False)

    def __call__(self, plans: Plans) -> Tables:
        tables = self._kept.pop(plans, None)
        if tables is None:
            self._make_room()
            tables = self.make(plans)
        self._kept[plans] = tables  # the most recent last
        return tables

    def clear(self) -> None:
        self._kept.clear()

    def _make_room(self) -> None:
        while sum(tables.nbytes for tables in self._kept.values()) > KEPT_TABLE_BYTES:
            del self._kept[next(iter(self._kept))]
