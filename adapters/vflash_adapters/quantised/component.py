"""One component: the chosen matrices as E4M3 codes and row scales, everything else as it is stored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from attrs import frozen

from vflash_adapters.linear.fp8 import pack_rows
from vflash_adapters.quantised.shard_writer import WrittenFile, write_shards
from vflash_ports.errors import CheckpointError, ContractError
from vflash_ports.observer import Observer
from vflash_ports.weights import TensorSpec, WeightSource

SCALE_SUFFIX = "_scale"


@frozen(kw_only=True)
class QuantisedComponent:
    """What was written: the modules whose weights are FP8 now, and the files with their hashes."""

    modules: tuple[str, ...]
    kept_tensors: int
    source_bytes: int
    stored_bytes: int
    files: tuple[WrittenFile, ...]


def quantise_component(
    source: WeightSource, target: Path, *, stem: str, chosen: re.Pattern[str], observer: Observer, what: str
) -> QuantisedComponent:
    """Write `source` to `target`/`stem`*.safetensors; modules whose whole name matches `chosen` become FP8.

    Raises `ContractError` if nothing matches, `CheckpointError` if a match is no full-width matrix or holds NaN.
    """
    stored = source.specs()
    modules = tuple(sorted(module for module in _modules(stored) if chosen.fullmatch(module)))
    if not modules:
        raise ContractError(f"{what}: no matrix matches the chosen layers, so there is nothing to quantise")
    quantised = {f"{module}.weight" for module in modules}
    for name in sorted(quantised):
        _check(stored[name], what)
    specs = [new for spec in stored.values() for new in _new_specs(spec, spec.name in quantised)]
    files = write_shards(target, stem, specs, _tensors(source, stored, quantised, observer, what))
    return QuantisedComponent(
        modules=modules,
        kept_tensors=len(stored) - len(quantised),
        source_bytes=sum(spec.byte_count for spec in stored.values()),
        stored_bytes=sum(spec.byte_count for spec in specs),
        files=tuple(files),
    )


def _modules(stored: Mapping[str, TensorSpec]) -> Iterator[str]:
    return (name.removesuffix(".weight") for name in stored if name.endswith(".weight"))


def _check(spec: TensorSpec, what: str) -> None:
    if len(spec.shape) != 2 or not spec.dtype.is_floating_point or spec.dtype.itemsize < 2:
        raise CheckpointError(
            f"{what}: {spec.name} is {spec.dtype} {list(spec.shape)}; only full-width matrices are quantised"
        )


def _new_specs(spec: TensorSpec, is_quantised: bool) -> list[TensorSpec]:
    if not is_quantised:
        return [spec]
    rows, width = spec.shape
    return [
        TensorSpec(name=spec.name, dtype=torch.float8_e4m3fn, shape=spec.shape, byte_count=rows * width),
        TensorSpec(name=spec.name + SCALE_SUFFIX, dtype=torch.float32, shape=(rows, 1), byte_count=4 * rows),
    ]


def _tensors(
    source: WeightSource, stored: Mapping[str, TensorSpec], quantised: set[str], observer: Observer, what: str
) -> Iterator[torch.Tensor]:
    total, done = sum(spec.byte_count for spec in stored.values()), 0
    with source.open() as reader:
        for name, spec in stored.items():
            tensor = reader.get_tensor(name)
            yield from _codes(tensor, name, what) if name in quantised else (tensor,)
            done += spec.byte_count
            observer.progress(Path(what).name, done, total)


def _codes(weight: torch.Tensor, name: str, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    packed = pack_rows(weight, f"{what}: {name}")
    assert packed.scales is not None
    return packed.weight, packed.scales
