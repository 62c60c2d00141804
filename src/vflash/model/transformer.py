"""The denoiser: loaded once, prepared per request, evaluated hot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from attrs import define, frozen

from vflash.domain.model_facts import DenoiserFacts
from vflash.model.block import BlockRun, BlockWeights, run_block
from vflash.model.load import (
    LINEARS,
    CheckpointBlocks,
    bind_block,
    check_specs,
    fp8_linears,
    outer_residuals,
    read_auxiliary,
)
from vflash.model.modulation import (
    evaluation_timesteps,
)
from vflash.model.positions import PackedIndex, Role
from vflash.model.refiner import refine_text
from vflash.model.residual import AdaptedBlocks, NamedLinears, PackedResidual, plan_residuals
from vflash.model.rotary import rotary_tables
from vflash.model.sigmas import Grids
from vflash.model.tables import CheckpointTables, TableCache, Tables
from vflash_ports.adapters import Adapter, AdapterReport, LowRank
from vflash_ports.attention import AttentionFn
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.linear import LinearExecution
from vflash_ports.observer import Observer
from vflash_ports.residency import BlockLoader, BlockStack, Residency, ResidencyMemory
from vflash_ports.weights import WeightReader, WeightSource


@frozen(kw_only=True, eq=False)
class DenoiserInputs:
    """One request, packed. Text `embeds` [text rows, text_dim]; condition rows are already noised, in packed order."""

    index: PackedIndex
    embeds: torch.Tensor
    condition_video: torch.Tensor | None
    condition_audio: torch.Tensor | None
    grids: Grids


@define(kw_only=True, eq=False)
class Denoiser:
    """A loaded transformer. `open_denoiser` is the way in; `close` releases every weight."""

    facts: DenoiserFacts
    table_cache: TableCache
    stack: BlockStack[BlockWeights]
    auxiliary: dict[str, torch.Tensor]
    residuals: dict[str, LowRank]
    adapter: AdapterReport | None
    fp8_linears: tuple[str, ...]
    kernels: BlockKernels
    device: torch.device
    dtype: torch.dtype
    ffn_chunk_rows: int

    def prepare(self, inputs: DenoiserInputs, attend: AttentionFn, observer: Observer) -> PreparedDenoiser:
        """Everything that does not change between evaluations."""
        with observer.phase("row_setup"):
            cos, sin = rotary_tables(inputs.index.positions.to(self.device), self.facts)
            roles = inputs.index.roles.to(self.device)
        with observer.phase("adaln"):
            tables = self.tables(inputs)
        with observer.phase("invocation_prepare"):
            prefix = self._prefix(inputs)
        run = BlockRun(
            kernels=self.kernels,
            attend=attend,
            observer=observer,
            roles=roles,
            cos=cos,
            sin=sin,
            heads=self.facts.num_attention_heads,
            norm_eps=self.facts.norm_eps,
            qk_norm_eps=self.facts.qk_norm_eps,
            chunk_rows=self.ffn_chunk_rows,
        )
        return PreparedDenoiser(denoiser=self, run=run, index=inputs.index, prefix=prefix, tables=tables)

    def tables(self, inputs: DenoiserInputs) -> Tables:
        """Made once per schedule; AdaLN weights are not kept."""
        used = [Role(int(role)) for role in inputs.index.roles.unique()]
        return self.table_cache(evaluation_timesteps(inputs.grids, used))

    @property
    def linears(self) -> NamedLinears:
        return NamedLinears(weights=self.auxiliary, residuals=self.residuals)

    def _prefix(self, inputs: DenoiserInputs) -> torch.Tensor:
        """Text and condition rows as they enter block 0: [rows before the targets, C], the same every evaluation."""
        index = inputs.index
        prefix = torch.empty(index.target_audio.start, self.facts.hidden_size, dtype=self.dtype, device=self.device)
        prefix[: index.text_rows] = refine_text(inputs.embeds.to(self.device), self.linears, self.facts)
        for name, rows, places in (
            ("proj_in", inputs.condition_video, index.condition_video),
            ("audio_proj_in", inputs.condition_audio, index.condition_audio),
        ):
            done = 0
            for place in places:
                assert rows is not None
                count = place.stop - place.start
                prefix[place] = self.project(name, rows[done : done + count])
                done += count
        return prefix

    def project(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Latent rows through a float32 input projection, cast to the model's dtype."""
        rows = rows.to(device=self.device, dtype=torch.float32)
        return self.linears(name, rows).to(self.dtype)

    def memory(self) -> ResidencyMemory:
        return self.stack.memory()

    def close(self) -> None:
        self.stack.close()
        self.auxiliary.clear()
        self.residuals.clear()
        self.table_cache.clear()


@frozen(kw_only=True, eq=False)
class PreparedDenoiser:
    """One request on a loaded denoiser."""

    denoiser: Denoiser
    run: BlockRun
    index: PackedIndex
    prefix: torch.Tensor
    tables: Tables

    def evaluate(
        self, evaluation: int, video_rows: torch.Tensor, audio_rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Generated rows, float32 -> their velocities toward data, float32: video [n, 96], audio [m, 32]."""
        x = self._pack(evaluation, video_rows, audio_rows)
        with self.run.observer.phase("denoiser", evaluation=evaluation):
            for block, weights in enumerate(self.denoiser.stack.blocks(self.run.observer, evaluation=evaluation)):
                x = self._block(weights, x, block, evaluation)
        return self._velocities(x, evaluation)

    def first_non_finite(self, evaluation: int, video_rows: torch.Tensor, audio_rows: torch.Tensor) -> str:
        """Run the evaluation again, looking at every block: where NaN or infinity first appears."""
        x = self._pack(evaluation, video_rows, audio_rows)
        if not bool(x.isfinite().all()):
            return "the packed input"
        for block, weights in enumerate(self.denoiser.stack.blocks(self.run.observer, evaluation=evaluation)):
            x = self._block(weights, x, block, evaluation)
            if not bool(x.isfinite().all()):
                return f"block {block}"
        if all(bool(velocity.isfinite().all()) for velocity in self._velocities(x, evaluation)):
            return "a place that a second run of the evaluation did not show: the device may be faulty"
        return "the output heads"

    def _pack(self, evaluation: int, video_rows: torch.Tensor, audio_rows: torch.Tensor) -> torch.Tensor:
        with self.run.observer.phase("input_pack", evaluation=evaluation):
            rows = self.index.target_video.stop
            x = self.prefix.new_empty(rows, self.prefix.shape[1])
            x[: self.prefix.shape[0]] = self.prefix
            x[self.index.target_audio] = self.denoiser.project("audio_proj_in", audio_rows)
            x[self.index.target_video] = self.denoiser.project("proj_in", video_rows)
            return x

    def _block(self, weights: BlockWeights, x: torch.Tensor, block: int, evaluation: int) -> torch.Tensor:
        with self.run.observer.phase("block", evaluation=evaluation, block=block):
            table = self.tables.blocks[block][evaluation]
            return run_block(weights, self.run, x, table, block=block, evaluation=evaluation)

    def _velocities(self, x: torch.Tensor, evaluation: int) -> tuple[torch.Tensor, torch.Tensor]:
        with self.run.observer.phase("final_layer", evaluation=evaluation):
            video = self._head("proj_out", x[self.index.target_video], Role.VIDEO, evaluation)
            audio = self._head("audio_proj_out", x[self.index.target_audio], Role.AUDIO, evaluation)
        return video, audio

    def _head(self, name: str, x: torch.Tensor, role: Role, evaluation: int) -> torch.Tensor:
        aux, facts = self.denoiser.auxiliary, self.denoiser.facts
        shift, scale = self.tables.final[evaluation, role]
        normed = F.rms_norm(x, (facts.hidden_size,), aux["norm_out.norm.weight"], facts.final_norm_eps)
        modulated = (normed * (1.0 + scale) + shift).to(torch.float32)
        return self.denoiser.linears(name, modulated)


@frozen(kw_only=True, eq=False)
class LoadedBase:
    """A checked checkpoint, ready to be loaded into a stack or written down; the reader is open."""

    blocks: BlockLoader
    auxiliary: dict[str, torch.Tensor]
    residuals: dict[str, LowRank]
    planned: tuple[PackedResidual, ...]
    tables: CheckpointTables


def read_base(
    source: WeightSource,
    reader: WeightReader,
    *,
    what: str,
    facts: DenoiserFacts,
    execution: LinearExecution,
    device: torch.device,
    dtype: torch.dtype,
    adapter: Adapter | None,
) -> LoadedBase:
    """Check every name and shape, read what is outside the blocks, and say how blocks are packed."""
    specs = source.specs()
    check_specs(specs, facts, what=what)
    blocks = CheckpointBlocks(
        reader=reader, source_specs=specs, facts=facts, execution=execution, dtype=dtype, device=device
    )
    auxiliary = read_auxiliary(reader, specs, device=device, dtype=dtype)
    modules = {} if adapter is None else adapter.modules
    shapes = {name: spec.shape for name, spec in specs.items()}
    planned = plan_residuals(modules, LINEARS, shapes, facts.num_layers)
    residuals = outer_residuals(modules, auxiliary, device)
    return LoadedBase(
        blocks=AdaptedBlocks(base=blocks, residuals=modules, planned=planned, dtype=dtype),
        auxiliary=auxiliary,
        residuals=residuals,
        planned=planned,
        tables=CheckpointTables(
            source=source, auxiliary=auxiliary, residuals=residuals, facts=facts, device=device, dtype=dtype
        ),
    )


@contextmanager
def open_denoiser(
    source: WeightSource,
    *,
    what: str,
    facts: DenoiserFacts,
    execution: LinearExecution,
    kernels: BlockKernels,
    residency: Residency,
    device: torch.device,
    dtype: torch.dtype,
    ffn_chunk_rows: int,
    adapter: Adapter | None = None,
) -> Iterator[Denoiser]:
    """Check every name and shape, then load, `adapter` beside the base. On leaving, all weights are released."""
    with source.open() as reader:
        base = read_base(
            source,
            reader,
            what=what,
            facts=facts,
            execution=execution,
            device=device,
            dtype=dtype,
            adapter=adapter,
        )

        def bind(tensors: Mapping[str, torch.Tensor]) -> BlockWeights:
            return bind_block(tensors, execution, base.planned)

        stack = residency.load(base.blocks, bind, device)
    denoiser = Denoiser(
        facts=facts,
        table_cache=TableCache(make=base.tables),
        stack=stack,
        auxiliary=base.auxiliary,
        residuals=base.residuals,
        adapter=None if adapter is None else adapter.report,
        fp8_linears=fp8_linears(base.blocks.specs()),
        kernels=kernels,
        device=device,
        dtype=dtype,
        ffn_chunk_rows=ffn_chunk_rows,
    )
    try:
        yield denoiser
    finally:
        denoiser.close()
