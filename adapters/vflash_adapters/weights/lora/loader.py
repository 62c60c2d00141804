"""An adapter file of any plain family as residuals of canonical modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from attrs import field, frozen
from attrs.converters import optional

from vflash_adapters.strict_json import brief
from vflash_adapters.weights.checkpoint import read_shard
from vflash_adapters.weights.checkpoint_files import find_component_files
from vflash_adapters.weights.layouts.recipes import QkvOrder
from vflash_adapters.weights.lora.adapter_keys import REF_PREFIX, AdapterKeys, StoredPair, read_keys
from vflash_adapters.weights.lora.alpha import Alphas, resolve_alphas
from vflash_adapters.weights.lora.families import family_name, fused_order
from vflash_adapters.weights.lora.not_lora import refuse_other_adapters
from vflash_adapters.weights.lora.vocabulary import Entry, Target, build_vocabulary, flatten
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.adapters import AdaptedModule, Adapter, AdapterReport, LowRank
from vflash_ports.errors import CheckpointError
from vflash_ports.weights import TensorSpec, WeightReader

Specs = Mapping[str, TensorSpec]


@frozen(kw_only=True)
class LoraLoader:
    """An `AdapterLoader`. Options say only what files cannot: `alpha` (a number or "rank"), `qkv_order`, `strength`."""

    alpha: float | str | None = None
    qkv_order: QkvOrder | None = field(default=None, converter=optional(QkvOrder))
    strength: float = 1.0

    def inspect(self, path: Path, base: Specs, *, component: str) -> AdapterReport:
        with self._open(path, base, component) as opened:
            return self._report(opened)

    def load(self, path: Path, base: Specs, *, component: str) -> Adapter:
        with self._open(path, base, component) as opened:
            residuals: dict[str, LowRank] = {}
            for pair in opened.keys.pairs:
                entry, scale = opened.entries[pair.module], opened.scale(pair, self.strength)
                residuals.update(_residuals(pair, entry, scale, opened.reader, residuals, opened.file))
            return Adapter(modules=residuals, report=self._report(opened))

    @contextmanager
    def _open(self, path: Path, base: Specs, component: str) -> Iterator[_Opened]:
        file = _single_file(path)
        source, metadata = MmapWeights(file), read_shard(file).header.metadata
        specs = source.specs()
        refuse_other_adapters(specs, metadata, str(file))
        keys = read_keys(specs, str(file))
        _check_component(keys, component, file)
        is_fused = any(flatten(pair.module).endswith("attn_qkv_proj") for pair in keys.pairs)
        order = fused_order(keys, is_fused, metadata, self.qkv_order, str(file))
        entries = _match(keys, build_vocabulary(base, order is QkvOrder.INTERLEAVED), specs, base, file)
        ranks = {pair.module: specs[pair.down].shape[0] for pair in keys.pairs}
        with source.open() as reader:
            alphas = resolve_alphas(file, keys, _stored_alphas(keys, reader), ranks, metadata, self.alpha)
            yield _Opened(
                file=file,
                keys=keys,
                entries=entries,
                ranks=ranks,
                alphas=alphas,
                qkv_order=order.value if is_fused else "split",
                component=component if REF_PREFIX in keys.prefixes else None,
                reader=reader,
            )

    def _report(self, opened: _Opened) -> AdapterReport:
        return AdapterReport(
            path=opened.file,
            family=family_name(opened.keys, {entry.naming for entry in opened.entries.values()}),
            component=opened.component,
            alpha_source=opened.alphas.source,
            qkv_order=opened.qkv_order,
            strength=self.strength,
            modules=tuple(
                AdaptedModule(
                    stored_name=pair.module,
                    targets=tuple(target.module for target in opened.entries[pair.module].targets),
                    rank=opened.ranks[pair.module],
                    alpha=opened.alphas.of[pair.module],
                    scale=opened.scale(pair, self.strength),
                )
                for pair in opened.keys.pairs
            ),
            unmatched=(),
        )


@frozen(kw_only=True, eq=False)
class _Opened:
    """A file whose every pair has found its targets."""

    file: Path
    keys: AdapterKeys
    entries: Mapping[str, Entry]
    ranks: Mapping[str, int]
    alphas: Alphas
    qkv_order: str
    component: str | None
    reader: WeightReader

    def scale(self, pair: StoredPair, strength: float) -> float:
        return self.alphas.of[pair.module] / self.ranks[pair.module] * strength


def _single_file(path: Path) -> Path:
    files = find_component_files(path)
    if len(files.shards) != 1:
        raise CheckpointError(f"{path}: an adapter is one file, but there are {len(files.shards)}")
    return files.shards[0]


def _check_component(keys: AdapterKeys, component: str, file: Path) -> None:
    if REF_PREFIX in keys.prefixes and component != REF_PREFIX.rstrip("."):
        raise CheckpointError(f"{file}: adapts transformer_ref, but {component} would run it")


def _match(
    keys: AdapterKeys, vocabulary: Mapping[str, Entry], specs: Specs, base: Specs, file: Path
) -> dict[str, Entry]:
    """Every pair's targets. Nothing is skipped: what does not fit is listed with its reason."""
    entries, faults = {}, []
    for pair in keys.pairs:
        entry = vocabulary.get(flatten(pair.module))
        fault = "is no module of this checkpoint" if entry is None else _misfit(pair, entry, specs, base)
        if fault:
            faults.append(f"{brief(pair.module)} {fault}")
        elif entry is not None:
            entries[pair.module] = entry
    if faults:
        raise CheckpointError(
            f"{file}: only {len(entries)} of {len(keys.pairs)} pairs fit this checkpoint; not used in part. "
            f"{'; '.join(faults[:5])}{' ...' if len(faults) > 5 else ''}"
        )
    if not entries:
        raise CheckpointError(f"{file}: holds no LoRA pair")
    return entries


def _misfit(pair: StoredPair, entry: Entry, specs: Specs, base: Specs) -> str | None:
    down, up = specs[pair.down].shape, specs[pair.up].shape
    if len(down) != 2 or len(up) != 2 or down[0] != up[1] or not down[0]:
        return f"has shapes {list(down)} and {list(up)}, which are no low-rank pair"
    out_rows, in_width = base[f"{entry.targets[0].module}.weight"].shape
    parts = entry.targets[0].rows.parts // len(entry.targets[0].rows.order)
    if down[1] != in_width or up[0] != out_rows * parts:
        return (
            f"is {up[0]} x {down[1]}, but the checkpoint has {out_rows * parts} x {in_width}"
            f"{' (trained on a pruned AdaLN?)' if 'adaln' in pair.module else ''}"
        )
    return None


def _stored_alphas(keys: AdapterKeys, reader: WeightReader) -> dict[str, float]:
    alphas = {}
    for pair in keys.pairs:
        if pair.alpha is not None:
            value = reader.get_tensor(pair.alpha)
            if value.numel() != 1:
                raise CheckpointError(f"{pair.alpha}: must hold one number, not {list(value.shape)}")
            alphas[pair.module] = float(value)
    return alphas


def _residuals(
    pair: StoredPair, entry: Entry, scale: float, reader: WeightReader, held: Mapping[str, LowRank], file: Path
) -> dict[str, LowRank]:
    down, up = reader.get_tensor(pair.down), reader.get_tensor(pair.up)
    if down.dtype != up.dtype or not down.dtype.is_floating_point or down.dtype.itemsize < 2:
        raise CheckpointError(
            f"{file}: {brief(pair.module)} has dtypes {down.dtype} and {up.dtype}; expected one float"
        )
    if not (bool(down.isfinite().all()) and bool(up.isfinite().all())):
        raise CheckpointError(f"{file}: {brief(pair.module)} holds NaN or infinity")
    down, made = down.clone(), {}  # off the mapped file; targets of one fused pair share it
    for target in entry.targets:
        if target.module in held:
            raise CheckpointError(f"{file}: adapts {target.module} twice")
        made[target.module] = _without_empty_ranks(down, target, up, scale)
    return made


def _without_empty_ranks(down: torch.Tensor, target: Target, up: torch.Tensor, scale: float) -> LowRank:
    """One target's rows of a fused pair. Fused files are block-diagonal: two thirds of the ranks do nothing for q, and
    leaving them out is exact."""
    own = target.rows.pick(up)
    if target.rows.parts == 3:
        used = own.ne(0).any(0)
        if bool(used.any()) and not bool(used.all()):
            return LowRank(down=down[used], up=own[:, used].contiguous(), scale=scale)
    return LowRank(down=down, up=own.clone(), scale=scale)
