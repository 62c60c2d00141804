"""An adapter's scale: the same float32 on every path, whatever the model's dtype and the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vflash.model.residual import AdaptedLinear, Part, apart, with_residual
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_ports.adapters import LowRank
from vflash_ports.linear import ActivationFormat, PackedLinear

C, OUT, RANK, ROWS = 32, 96, 4, 41
SCALE = 0.7123456
"""BF16 has 0.7109375 beside it: 0.2 % off, enough to move every third product."""


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


VALUES, WEIGHT, DOWN, UP = (
    draw(ROWS, C, seed=1),
    draw(OUT, C, seed=2) / 8,
    draw(RANK, C, seed=3),
    draw(OUT, RANK, seed=4),
)


def adapted(parts: int) -> AdaptedLinear:
    """One `down` and `up` over all columns, or as many as `parts`, each with its share of the columns."""
    width = OUT // parts
    return AdaptedLinear(
        base=Bf16Linear().bind(PackedLinear(weight=WEIGHT)),
        down=DOWN,
        ups=tuple(UP[width * number : width * (number + 1)] for number in range(parts)),
        scales=tuple(torch.full((parts,), SCALE)),
        parts=tuple(
            Part(rank_start=0, rank_stop=RANK, column_start=width * number, column_stop=width * (number + 1))
            for number in range(parts)
        ),
    )


def in_the_activation() -> torch.Tensor:
    """SwiGLU over a linear whose residual it merges itself."""
    made = apart(adapted(1), VALUES)
    assert made.residual is not None
    return swiglu(made.values, residual=made.residual, residual_scale=made.scale)


def swiglu(packed: torch.Tensor, **residual: Any) -> torch.Tensor:
    result = TorchBlockKernels().swiglu(packed, emit=ActivationFormat.DENSE, **residual)
    assert isinstance(result, torch.Tensor)
    return result


OUTSIDE = LowRank(down=DOWN, up=UP, scale=SCALE)
PATHS: dict[str, Callable[[], torch.Tensor]] = {
    "whole linear": lambda: adapted(1)(VALUES),
    "linear of three parts": lambda: adapted(3)(VALUES),
    "outside the stack": lambda: with_residual(torch.nn.functional.linear(VALUES, WEIGHT), VALUES, OUTSIDE),
}


def expected() -> torch.Tensor:
    """The scale in float32, its product rounded once; all else as BF16 has it."""
    base = torch.nn.functional.linear(VALUES, WEIGHT)
    update = torch.nn.functional.linear(torch.nn.functional.linear(VALUES, DOWN), UP)
    product = (update.double() * torch.tensor(SCALE).double()).float().bfloat16()
    return (base.double() + product.double()).float().bfloat16()


@pytest.mark.parametrize("path", PATHS)
def test_every_path_scales_in_float32(path):
    """BF16 tensors against float64, bit for bit."""
    assert torch.equal(PATHS[path](), expected())


def test_the_fused_activation_scales_alike():
    """Bit for bit what the merged sums give."""
    assert torch.equal(in_the_activation(), swiglu(expected()))


def test_a_rounded_scale_would_be_seen():
    """The yardstick itself: with the scale in BF16 a large share of the values differ."""
    update = torch.nn.functional.linear(torch.nn.functional.linear(VALUES, DOWN), UP)
    rounded = update.double() * torch.tensor(SCALE).bfloat16().double()
    wrong = torch.nn.functional.linear(VALUES, WEIGHT).double() + rounded.bfloat16().double()
    assert float((wrong.bfloat16() != expected()).double().mean()) > 0.1


class Products(TorchDispatchMode):
    """The dtype in which every product of two tensors is taken, by the rules that hold on every device."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        scaled = func.overloadpacket in (torch.ops.aten.mul, torch.ops.aten.mul_) and len(args) > 1
        if scaled and isinstance(args[1], torch.Tensor) and args[1].numel() == 1:
            self.dtypes.append(torch.result_type(args[0], args[1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("parts", [1, 3])
def test_no_device_rounds_the_scale(parts):
    """A CPU multiplies by an unrounded scale of no dimensions, CUDA does not: what is asked for must be float32."""
    with Products() as seen:
        adapted(parts)(VALUES)
        in_the_activation()
    assert seen.dtypes == [torch.float32] * (parts + 1)
