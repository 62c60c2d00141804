"""A denoiser compiled for one profile: packed blocks, finished modulation tables, the few tensors outside them.

AdaLN weights, 13 of 33 billion parameters, are read once while compiling and never again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from attrs import frozen

from vflash.domain.model_facts import DenoiserFacts
from vflash.model.block import BlockWeights
from vflash.model.compiled_layout import CompiledLayout
from vflash.model.load import MODULATION_TABLE, bind_block, fp8_linears
from vflash.model.tables import Plans, TableCache, Tables
from vflash.model.transformer import Denoiser, LoadedBase
from vflash_ports.adapters import AdapterReport, LowRank
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.errors import ContractError
from vflash_ports.linear import LinearExecution
from vflash_ports.residency import Residency
from vflash_ports.weights import TensorSpec, WeightReader, WeightSource

BLOCK, RESIDUAL, TABLES = "transformer_blocks.{}.", "residual.", "tables.{}."
_TABLE_INPUTS = ("time_embedder.", "norm_out.linear.", MODULATION_TABLE)
"""Read only to make tables, so left out."""


def compiled_parts(base: LoadedBase, plans: tuple[Plans, ...]) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """File stem and named CPU tensors: every block, then the tensors outside, then the tables of every variant."""
    specs = base.blocks.specs()
    for block in range(base.blocks.count):
        tensors = {name: torch.empty(spec.shape, dtype=spec.dtype) for name, spec in specs.items()}
        base.blocks.load_into(block, tensors)
        yield f"block-{block:03d}", {BLOCK.format(block) + name: tensor for name, tensor in tensors.items()}
    outside = {name: tensor for name, tensor in base.auxiliary.items() if not name.startswith(_TABLE_INPUTS)}
    for name, pair in kept_residuals(base.residuals, outside).items():
        outside[f"{RESIDUAL}{name}.down"], outside[f"{RESIDUAL}{name}.up"] = pair.down, pair.up
    yield "outside", {name: tensor.cpu() for name, tensor in outside.items()}
    for number, variant in enumerate(plans):
        tables = base.tables(variant)
        prefix = TABLES.format(number)
        yield (
            f"tables-{number}",
            {
                f"{prefix}blocks": torch.stack(tables.blocks).cpu(),
                f"{prefix}final": tables.final.cpu(),
            },
        )


def kept_residuals(residuals: Mapping[str, LowRank], outside: Mapping[str, torch.Tensor]) -> dict[str, LowRank]:
    """Those beside the tensors outside the stack; residuals of modulation projections are inside the tables."""
    return {name: pair for name, pair in residuals.items() if f"{name}.weight" in outside}


@contextmanager
def open_compiled(
    source: WeightSource,
    layout: CompiledLayout,
    *,
    facts: DenoiserFacts,
    adapter: AdapterReport | None,
    execution: LinearExecution,
    kernels: BlockKernels,
    residency: Residency,
    device: torch.device,
    dtype: torch.dtype,
    ffn_chunk_rows: int,
) -> Iterator[Denoiser]:
    """Like `open_denoiser`, from compiled tensors: nothing is fused, cast, quantised or projected again."""
    specs = source.specs()

    def bind(tensors: Mapping[str, torch.Tensor]) -> BlockWeights:
        return bind_block(tensors, execution, layout.residuals)

    with source.open() as reader:
        outside = _read_outside(reader, specs, device)
        blocks = CompiledBlocks(reader=reader, stored=specs, count=facts.num_layers)
        stack = residency.load(blocks, bind, device)
    residuals = {
        name: LowRank(down=outside.pop(f"{RESIDUAL}{name}.down"), up=outside.pop(f"{RESIDUAL}{name}.up"), scale=scale)
        for name, scale in layout.outer_scales.items()
    }
    denoiser = Denoiser(
        facts=facts,
        table_cache=TableCache(make=StoredTables(source=source, variants=layout.variants, device=device)),
        stack=stack,
        auxiliary=outside,
        residuals=residuals,
        adapter=adapter,
        fp8_linears=fp8_linears(blocks.specs()),
        kernels=kernels,
        device=device,
        dtype=dtype,
        ffn_chunk_rows=ffn_chunk_rows,
    )
    try:
        yield denoiser
    finally:
        denoiser.close()


@frozen(kw_only=True, eq=False)
class CompiledBlocks:
    """A `BlockLoader` whose packed tensors are stored as they are: straight into the caller's memory."""

    reader: WeightReader
    stored: Mapping[str, TensorSpec]
    count: int

    def specs(self) -> Mapping[str, TensorSpec]:
        prefix = BLOCK.format(0)
        names = {name.removeprefix(prefix): spec for name, spec in self.stored.items() if name.startswith(prefix)}
        return {
            name: TensorSpec(name=name, dtype=spec.dtype, shape=spec.shape, byte_count=spec.byte_count)
            for name, spec in names.items()
        }

    def load_into(self, index: int, out: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in out.items():
            stored = BLOCK.format(index) + name
            if tensor.device.type == "cpu":
                self.reader.read_into(stored, tensor)
            else:
                tensor.copy_(self.reader.get_tensor(stored))


@frozen(kw_only=True, eq=False)
class StoredTables:
    """A `TableMaker` that knows the schedules it was compiled for, and no other."""

    source: WeightSource
    variants: tuple[Plans, ...]
    device: torch.device

    def __call__(self, plans: Plans) -> Tables:
        if plans not in self.variants:
            raise ContractError(
                "these compiled assets hold no tables for this request's schedule and kinds of rows; "
                "compile assets for its profile, or run from the checkpoint"
            )
        prefix = TABLES.format(self.variants.index(plans))
        with self.source.open() as reader:
            blocks = _owned(reader, f"{prefix}blocks", self.device)
            final = _owned(reader, f"{prefix}final", self.device)
        return Tables(blocks=tuple(blocks), final=final)


def _read_outside(
    reader: WeightReader, specs: Mapping[str, TensorSpec], device: torch.device
) -> dict[str, torch.Tensor]:
    skipped = (BLOCK.split("{}", maxsplit=1)[0], TABLES.split("{}", maxsplit=1)[0])
    return {name: _owned(reader, name, device) for name in specs if not name.startswith(skipped)}


def _owned(reader: WeightReader, name: str, device: torch.device) -> torch.Tensor:
    """On the device, in memory of its own."""
    stored = reader.get_tensor(name)
    return stored.clone() if device.type == "cpu" else stored.to(device)
