"""Adapters as low-rank residuals beside the base: executed, never merged, over any linear execution.

y = base(x); y += scale * (up @ (down @ x)), rounded to the model's dtype after down, up, scale and sum, as PEFT does.
The scale itself is never rounded: a Python float, or one float32 beside the weights that a ring moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from attrs import frozen

from vflash_ports.adapters import LowRank
from vflash_ports.linear import ActivationFormat, BoundLinear, Fp8Rows
from vflash_ports.residency import BlockLoader
from vflash_ports.weights import TensorSpec

Tensors = Mapping[str, torch.Tensor]


@frozen(kw_only=True)
class Part:
    """Ranks [rank_start, rank_stop) of the packed `down` feed output columns [column_start, column_stop)."""

    rank_start: int
    rank_stop: int
    column_start: int
    column_stop: int


@frozen(kw_only=True)
class PackedResidual:
    """The residual of one packed linear, of the same shape in every block; `modules` names each part's source.

    Parts that share one `down` (a fused QKV pair) are one part over all their columns.
    """

    linear: str
    in_features: int
    parts: tuple[Part, ...]
    modules: tuple[tuple[str, ...], ...]

    @property
    def rank(self) -> int:
        return self.parts[-1].rank_stop

    def specs(self, dtype: torch.dtype) -> Iterator[TensorSpec]:
        yield _spec(f"{self.linear}.down", dtype, (self.rank, self.in_features))
        yield _spec(f"{self.linear}.scales", torch.float32, (len(self.parts),))
        for number, part in enumerate(self.parts):
            shape = (part.column_stop - part.column_start, part.rank_stop - part.rank_start)
            yield _spec(f"{self.linear}.up.{number}", dtype, shape)


def plan_residuals(
    residuals: Mapping[str, LowRank],
    linears: Mapping[str, Sequence[str]],
    shapes: Mapping[str, tuple[int, ...]],
    count: int,
) -> tuple[PackedResidual, ...]:
    """How the residuals of `count` blocks lie beside their packed linears.

    `linears`: packed name -> block modules stacked by rows; `shapes`: checkpoint shapes. Ranks that differ from block
    to block are padded with zeros to the largest, since a ring moves blocks of one shape.
    """
    planned = []
    for linear, modules in linears.items():
        names = [tuple(f"transformer_blocks.{block}.{module}" for module in modules) for block in range(count)]
        if any(name in residuals for block in names for name in block):
            planned.append(_plan_linear(linear, names, residuals, shapes))
    return tuple(planned)


@frozen(kw_only=True, eq=False)
class AdaptedBlocks:
    """A `BlockLoader` that adds each block's residuals to its packed tensors."""

    base: BlockLoader
    residuals: Mapping[str, LowRank]
    planned: tuple[PackedResidual, ...]
    dtype: torch.dtype

    @property
    def count(self) -> int:
        return self.base.count

    def specs(self) -> Mapping[str, TensorSpec]:
        added = {spec.name: spec for plan in self.planned for spec in plan.specs(self.dtype)}
        return {**self.base.specs(), **added}

    def load_into(self, index: int, out: Tensors) -> None:
        self.base.load_into(index, out)
        for plan in self.planned:
            self._load_residual(plan, index, out)

    def _load_residual(self, plan: PackedResidual, index: int, out: Tensors) -> None:
        down, scales = out[f"{plan.linear}.down"].zero_(), out[f"{plan.linear}.scales"].zero_()
        for number, (part, modules) in enumerate(zip(plan.parts, plan.modules, strict=True)):
            up = out[f"{plan.linear}.up.{number}"].zero_()
            rows = 0
            for module in modules:
                name = f"transformer_blocks.{index}.{module}"
                pair = self.residuals.get(name)
                if pair is None:
                    continue  # a block this adapter leaves alone: zeros, whatever the scale
                rank = pair.down.shape[0]
                down[part.rank_start : part.rank_start + rank].copy_(pair.down)
                up[rows : rows + pair.up.shape[0], :rank].copy_(pair.up)
                scales[number] = pair.scale
                rows += pair.up.shape[0]


@frozen(kw_only=True, eq=False)
class AdaptedLinear:
    """A `BoundLinear` with its residual; it reads dense rows, since low-rank branches are not quantised."""

    base: BoundLinear
    down: torch.Tensor
    ups: tuple[torch.Tensor, ...]
    scales: tuple[torch.Tensor, ...]
    parts: tuple[Part, ...]
    consumes = ActivationFormat.DENSE

    def __call__(self, values: torch.Tensor | Fp8Rows, *, out: torch.Tensor | None = None) -> torch.Tensor:
        assert not isinstance(values, Fp8Rows), "an adapted linear was fed FP8 rows: emit what it consumes"
        result = self.base(values, out=out)
        low = F.linear(values, self.down)
        for part, up, scale in zip(self.parts, self.ups, self.scales, strict=True):
            update = F.linear(low[:, part.rank_start : part.rank_stop], up)
            # A scale of no dimensions would join in the update's dtype, which rounds it to BF16 on CUDA; one of one
            # element is multiplied in float32.
            result[:, part.column_start : part.column_stop].add_(update.mul_(scale.view(1)))
        return result


@frozen(kw_only=True, eq=False)
class Apart:
    """A linear's output and, unless it is in there already, the residual [rows, out] to add at `scale` (float32)."""

    values: torch.Tensor
    residual: torch.Tensor | None = None
    scale: torch.Tensor | None = None


def apart(linear: BoundLinear, values: torch.Tensor | Fp8Rows) -> Apart:
    """What `linear` makes of `values`, its residual not yet added where a kernel downstream can do so for all columns
    at once: one pass over memory in the place of three."""
    if not isinstance(linear, AdaptedLinear) or len(linear.parts) != 1 or isinstance(values, Fp8Rows):
        return Apart(values=linear(values))
    update = F.linear(F.linear(values, linear.down), linear.ups[0])
    return Apart(values=linear.base(values), residual=update, scale=linear.scales[0])


def bind_residual(base: BoundLinear, tensors: Tensors, plan: PackedResidual | None) -> BoundLinear:
    """`base` with the residual packed beside it, as views; without a plan, `base` itself."""
    if plan is None:
        return base
    scales = tensors[f"{plan.linear}.scales"]
    return AdaptedLinear(
        base=base,
        down=tensors[f"{plan.linear}.down"],
        ups=tuple(tensors[f"{plan.linear}.up.{number}"] for number in range(len(plan.parts))),
        scales=tuple(scales[number] for number in range(len(plan.parts))),
        parts=plan.parts,
    )


@frozen(kw_only=True, eq=False)
class NamedLinears:
    """The linears outside the block stack by checkpoint name, each with its residual if it has one."""

    weights: Tensors
    residuals: Mapping[str, LowRank]

    def __call__(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """x [..., in] -> [..., out] in the weight's dtype."""
        y = F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))
        return with_residual(y, x, self.residuals.get(name))


def with_residual(y: torch.Tensor, x: torch.Tensor, pair: LowRank | None) -> torch.Tensor:
    """`y` plus the residual of `x`; `pair` lies on x's device in x's dtype."""
    if pair is None:
        return y
    return y + F.linear(F.linear(x, pair.down), pair.up) * pair.scale


def moved(pair: LowRank, device: torch.device, dtype: torch.dtype) -> LowRank:
    return LowRank(down=pair.down.to(device, dtype), up=pair.up.to(device, dtype), scale=pair.scale)


def _plan_linear(
    linear: str, names: list[tuple[str, ...]], residuals: Mapping[str, LowRank], shapes: Mapping[str, tuple[int, ...]]
) -> PackedResidual:
    groups = [tuple(range(len(names[0])))] if _share_down(names, residuals) else [(n,) for n in range(len(names[0]))]
    parts, modules, rank, column = [], [], 0, 0
    for group in groups:
        width = sum(shapes[f"{names[0][member]}.weight"][0] for member in group)
        own = max(
            (residuals[block[group[0]]].down.shape[0] for block in names if block[group[0]] in residuals), default=0
        )
        if own:
            parts.append(Part(rank_start=rank, rank_stop=rank + own, column_start=column, column_stop=column + width))
            modules.append(tuple(names[0][member].split(".", 2)[2] for member in group))
        rank, column = rank + own, column + width
    return PackedResidual(
        linear=linear,
        in_features=shapes[f"{names[0][0]}.weight"][1],
        parts=tuple(parts),
        modules=tuple(modules),
    )


def _share_down(names: list[tuple[str, ...]], residuals: Mapping[str, LowRank]) -> bool:
    """True if in every adapted block all stacked modules read one and the same `down` at one scale."""
    for block in names:
        pairs = [residuals.get(name) for name in block]
        present = [pair for pair in pairs if pair is not None]
        if present and not (
            len(present) == len(pairs)
            and all(pair.down is present[0].down and pair.scale == present[0].scale for pair in present)
        ):
            return False
    return len(names[0]) > 1


def _spec(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> TensorSpec:
    count = 1
    for size in shape:
        count *= size
    return TensorSpec(name=name, dtype=dtype, shape=shape, byte_count=count * dtype.itemsize)
