"""A weight source in any known layout, seen through canonical names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import torch

from vflash_adapters.strict_json import parse_object
from vflash_adapters.weights.layouts.qkv_evidence import describe_evidence
from vflash_adapters.weights.layouts.recipes import QkvOrder, Recipe, is_native, native_recipes
from vflash_adapters.weights.layouts.refused import refuse_known_families
from vflash_adapters.weights.tensor_bytes import byte_view
from vflash_ports.errors import CheckpointError
from vflash_ports.weights import TensorSpec, WeightOpener, WeightReader, WeightSource

_APART = "transformer_blocks.0.attn.to_q.weight"
"""Only a denoiser has it, in the diffusers layout; other components know no row order at all."""


class CanonicalOpener:
    """A `WeightOpener` over another one: whatever layout lies at the path, names and rows come out canonical.

    Diffusers checkpoints pass through untouched. Native ones need to know their QKV row order, which neither names
    nor shapes tell: it is taken from `qkv_order`, or from a `model_index.json` of the original release beside the
    component (interleaved); without either the checkpoint is refused.
    """

    def __init__(self, opener: WeightOpener, *, qkv_order: str | None = None) -> None:
        self._opener = opener
        self._qkv_order = None if qkv_order is None else QkvOrder(qkv_order)

    def __call__(self, path: Path) -> WeightSource:
        return CanonicalWeights(self._opener(path), path, self._qkv_order)


class CanonicalWeights:
    """A `WeightSource` whose names are canonical. `layout` says what was found."""

    def __init__(self, source: WeightSource, path: Path, qkv_order: QkvOrder | None) -> None:
        self._source = source
        self._path = path
        self._asked_order = qkv_order

    @cached_property
    def layout(self) -> str:
        """`diffusers`, `native-interleaved` or `native-grouped`."""
        return f"native-{self._order}" if is_native(self._source.specs()) else "diffusers"

    @cached_property
    def _recipes(self) -> Mapping[str, Recipe]:
        stored = self._source.specs()
        refuse_known_families(stored, str(self._path))
        if is_native(stored):
            return native_recipes(stored, self._order, str(self._path))
        if self._asked_order is not None and _APART in stored:
            raise CheckpointError(
                f"{self._path}: stores q, k and v apart, so their rows have one order; drop --qkv-order"
            )
        return {name: Recipe(name) for name in stored}

    @cached_property
    def _order(self) -> QkvOrder:
        known = QkvOrder.INTERLEAVED if _is_original_release(self._path) else None
        if known is not None and self._asked_order not in (None, known):
            raise CheckpointError(
                f"{self._path}: belongs to the original release, whose QKV rows are {known}; "
                f"drop --qkv-order {self._asked_order}"
            )
        order = known or self._asked_order
        if order is None:
            raise CheckpointError(
                f"{self._path}: fused QKV rows may be interleaved per head or grouped, and nothing in the file says "
                f"which; pass --qkv-order interleaved or --qkv-order grouped ({describe_evidence(self._source)})"
            )
        return order

    @cached_property
    def _specs(self) -> Mapping[str, TensorSpec]:
        stored = self._source.specs()
        return {name: _canonical_spec(name, recipe, stored[recipe.source]) for name, recipe in self._recipes.items()}

    def specs(self) -> Mapping[str, TensorSpec]:
        return self._specs

    @contextmanager
    def open(self) -> Iterator[CanonicalReader]:
        specs = self._specs
        with self._source.open() as reader:
            yield CanonicalReader(reader, self._source.specs(), self._recipes, specs, self._path)


class CanonicalReader:
    """The open scope. Tensors that keep their rows are the source's own; others are made from one stored tensor, which
    is kept until another is asked for, so q, k and v of a block cost one read."""

    def __init__(
        self,
        reader: WeightReader,
        stored: Mapping[str, TensorSpec],
        recipes: Mapping[str, Recipe],
        specs: Mapping[str, TensorSpec],
        path: Path,
    ) -> None:
        self._reader = reader
        self._stored = stored
        self._recipes = recipes
        self._specs = specs
        self._path = path
        self._held: tuple[str, torch.Tensor] | None = None

    def get_tensor(self, name: str) -> torch.Tensor:
        recipe = self._recipe(name)
        if recipe.rows.is_identity:
            return self._reader.get_tensor(recipe.source)
        return recipe.rows.pick(self._whole(recipe.source)).clone()

    def read_into(self, name: str, out: torch.Tensor) -> None:
        recipe = self._recipe(name)
        if recipe.rows.is_identity:
            self._reader.read_into(recipe.source, out)
            return
        byte_view(out, self._specs[name])  # the same refusals as every reader's
        out.detach().copy_(recipe.rows.pick(self._whole(recipe.source)))

    def _recipe(self, name: str) -> Recipe:
        if name not in self._recipes:
            raise CheckpointError(f"{self._path}: has no tensor {name!r}")
        return self._recipes[name]

    def _whole(self, source: str) -> torch.Tensor:
        if self._held is None or self._held[0] != source:
            self._held = None
            spec = self._stored[source]
            whole = torch.empty(spec.shape, dtype=spec.dtype)
            self._reader.read_into(source, whole)
            self._held = (source, whole)
        return self._held[1]


def _canonical_spec(name: str, recipe: Recipe, stored: TensorSpec) -> TensorSpec:
    if recipe.rows.is_identity:
        return TensorSpec(name=name, dtype=stored.dtype, shape=stored.shape, byte_count=stored.byte_count)
    rows = recipe.rows.rows(stored.shape[0])
    byte_count = stored.byte_count // stored.shape[0] * rows
    return TensorSpec(name=name, dtype=stored.dtype, shape=(rows, *stored.shape[1:]), byte_count=byte_count)


def _is_original_release(path: Path) -> bool:
    """True where the model folder's index carries the original release's partition mark."""
    folder = path if path.is_dir() else path.parent
    index = folder.parent / "model_index.json"
    if not index.is_file() or index.stat().st_size > 2**20:
        return False
    mark = parse_object(index.read_bytes(), str(index)).get("_minimax_h3")
    return isinstance(mark, dict) and "partition" in mark
