"""What every linear execution promises."""

from __future__ import annotations

import pytest
import torch

from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.linear.fp8 import Fp8WeightOnlyLinear, W8A8Linear
from vflash_ports.linear import LinearExecution, PackedLinear

EXECUTIONS: dict[str, LinearExecution] = {
    "bf16": Bf16Linear(),
    "fp8-weight-only": Fp8WeightOnlyLinear(),
    "w8a8": W8A8Linear(row_kernels="torch"),
}
# relative error against float64 on random data: the GEMM's rounding, E4M3 weights, E4M3 weights and values
TOLERANCE = {"bf16": 4e-3, "fp8-weight-only": 0.032, "w8a8": 0.045}


@pytest.fixture(params=sorted(EXECUTIONS))
def execution(request: pytest.FixtureRequest) -> LinearExecution:
    return EXECUTIONS[request.param]


def draw(rows: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def relative_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual.double() - exact).norm() / exact.norm())


def test_it_is_registered_under_its_own_name(execution: LinearExecution) -> None:
    """The name a receipt prints is the name a user chooses."""
    assert EXECUTIONS[execution.name] is execution


@pytest.mark.parametrize(("rows", "inner", "outer"), [(1, 16, 16), (37, 64, 48), (256, 512, 128)])
def test_it_computes_the_product_in_the_values_dtype(
    execution: LinearExecution, rows: int, inner: int, outer: int
) -> None:
    """values [rows, in] @ weight.T within the stated relative error of float64."""
    values, weight = draw(rows, inner, 1), draw(outer, inner, 2)
    result = execution.bind(execution.pack(weight))(values)
    assert result.shape == (rows, outer)
    assert result.dtype == torch.bfloat16
    assert relative_error(result, values.double() @ weight.double().T) < TOLERANCE[execution.name]


def test_no_rows_give_no_rows(execution: LinearExecution) -> None:
    """A request without, say, conditioning rows is not an error."""
    assert execution.bind(execution.pack(draw(32, 16, 3)))(draw(0, 16, 4)).shape == (0, 32)


def test_the_result_can_be_written_into_a_part_of_a_tensor(execution: LinearExecution) -> None:
    """Chunks of rows fill one tensor, and come back as views of it."""
    values, bound = draw(24, 32, 13), execution.bind(execution.pack(draw(48, 32, 14)))
    whole = torch.full((24, 48), float("nan"), dtype=torch.bfloat16)
    for start in (0, 16):
        part = bound(values[start : start + 16], out=whole[start : start + 16])
        assert part.data_ptr() == whole[start:].data_ptr()
    assert relative_error(whole, bound(values).double()) < 4e-3


def test_row_strided_values_are_read_in_place(execution: LinearExecution) -> None:
    """A view into a wider tensor gives what its contiguous copy gives."""
    wide = draw(24, 96, 5)
    bound = execution.bind(execution.pack(draw(32, 32, 6)))
    assert torch.equal(bound(wide[:, 32:64]), bound(wide[:, 32:64].contiguous()))


def test_a_bound_linear_follows_its_storage(execution: LinearExecution) -> None:
    """A ring refills the packed storage between calls: the callable must hold views, never a copy."""
    first, second = execution.pack(draw(32, 16, 7)), execution.pack(draw(32, 16, 8))
    storage = PackedLinear(weight=first.weight.clone(), scales=None if first.scales is None else first.scales.clone())
    bound, values = execution.bind(storage), draw(5, 16, 9)
    assert torch.equal(bound(values), execution.bind(first)(values))
    storage.weight.copy_(second.weight)
    if storage.scales is not None and second.scales is not None:
        storage.scales.copy_(second.scales)
    assert torch.equal(bound(values), execution.bind(second)(values))


def test_packing_leaves_the_weight_alone(execution: LinearExecution) -> None:
    """The loader may hand in a view of a read-only mapping."""
    weight = draw(32, 16, 10)
    before = weight.clone()
    execution.pack(weight)
    assert torch.equal(weight, before)


def test_a_broken_value_shows_in_its_row_and_nowhere_else(execution: LinearExecution) -> None:
    """NaN or infinity in a row makes that row of the result non-finite and leaves the others as they were."""
    values, packed = draw(4, 16, 11), execution.pack(draw(32, 16, 12))
    clean = execution.bind(packed)(values)
    for broken in (float("nan"), float("inf"), -float("inf")):
        poisoned = values.clone()
        poisoned[2, 3] = broken
        result = execution.bind(packed)(poisoned)
        assert not result[2].isfinite().any()
        assert torch.equal(result[[0, 1, 3]], clean[[0, 1, 3]])
