"""`RowFP8Execution` and `RowFP8Linear`: numbers, refusals, counters, ownership."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vflash.native.h3_fp8_linear import RowFP8Execution, RowFP8Linear
from vflash_adapters.linear.row_quantiser import quantise_rows, restore_rows
from vflash_ports.errors import ContractError, UnsupportedError
from vflash_ports.linear import Fp8Rows

SIZES = st.sampled_from([16, 32, 48])


def weight(outer: int, inner: int, seed: int = 1) -> Fp8Rows:
    return quantise_rows(torch.randn(outer, inner, generator=torch.Generator().manual_seed(seed)))


def values(*shape: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def test_the_documented_block_runs_as_it_is_written() -> None:
    """Constructing the fused W8A8 execution needs neither a GPU nor Triton; running it there does."""
    import torch

    from vflash.native.h3_fp8_linear import RowFP8Execution

    codes = torch.zeros((16, 32), dtype=torch.float8_e4m3fn)
    scales = torch.ones((16, 1), dtype=torch.float32)
    values = torch.ones((2, 32), dtype=torch.bfloat16)
    reference = RowFP8Execution("weight-only").linear(values, codes, scales)
    execution = RowFP8Execution("w8a8", activation_quantizer="triton", fast_accum=False)
    assert torch.equal(reference, torch.zeros(2, 16, dtype=torch.bfloat16))
    with pytest.raises(UnsupportedError, match="CUDA"):
        execution.linear(values, codes, scales)


@settings(deadline=None, max_examples=25)
@given(rows=st.integers(0, 9), inner=SIZES, outer=SIZES, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_weight_only_is_the_gemm_of_the_restored_weight(rows: int, inner: int, outer: int, dtype: torch.dtype) -> None:
    """Value by value, in the values' dtype, at every shape."""
    stored, x = weight(outer, inner), values(rows, inner).to(dtype)
    result = RowFP8Execution("weight-only").linear(x, stored.codes, stored.scales)
    assert torch.equal(result, nn.functional.linear(x, restore_rows(stored.codes, stored.scales, dtype)))


@settings(deadline=None, max_examples=25)
@given(rows=st.integers(0, 9), inner=SIZES, outer=SIZES)
def test_w8a8_is_the_product_of_the_quantised_operands(rows: int, inner: int, outer: int) -> None:
    """Within BF16 rounding of float64 over the same codes and scales."""
    stored, x = weight(outer, inner), values(rows, inner)
    result = RowFP8Execution("w8a8", activation_quantizer="torch").linear(x, stored.codes, stored.scales)
    quantised = quantise_rows(x)
    exact = (quantised.codes.double() * quantised.scales.double()) @ (stored.codes.double() * stored.scales.double()).T
    assert result.dtype == torch.bfloat16
    assert torch.allclose(result.double(), exact, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("mode", ["weight-only", "w8a8"])
def test_leading_dimensions_are_flattened(mode: str) -> None:
    """[a, b, in] gives [a, b, out], row by row as the 2-D call; a bias is added."""
    execution = make(mode)
    stored, x, bias = weight(32, 16), values(2, 3, 16), values(32, seed=3)
    deep = execution.linear(x, stored.codes, stored.scales, bias)
    assert deep.shape == (2, 3, 32)
    assert torch.equal(deep.view(6, 32), execution.linear(x.view(6, 16), stored.codes, stored.scales, bias))
    plain = execution.linear(x, stored.codes, stored.scales)
    assert torch.allclose(deep.float(), plain.float() + bias.float(), rtol=2**-6, atol=2**-6)


def make(mode: str) -> RowFP8Execution:
    return RowFP8Execution(mode, activation_quantizer="torch" if mode == "w8a8" else None)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"mode": "w4a4"}, "mode"),
        ({"mode": "w8a8"}, "activation_quantizer"),
        ({"mode": "w8a8", "activation_quantizer": "cuda"}, "activation_quantizer"),
        ({"mode": "w8a8", "activation_quantizer": "torch", "restorer": "torch"}, "restorer"),
        ({"mode": "weight-only", "activation_quantizer": "torch"}, "activation_quantizer"),
        ({"mode": "weight-only", "fast_accum": True}, "fast_accum"),
        ({"mode": "weight-only", "restorer": "none"}, "restorer"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], word: str) -> None:
    """Nothing is guessed: the quantiser of w8a8 must be named, and weight-only has none."""
    with pytest.raises(ContractError, match=word):
        RowFP8Execution(**options)


def test_wrong_tensors_are_refused_by_name() -> None:
    """dtype, layout, alignment, shape and device, each with a message of its own."""
    w8a8, plain, stored, x = make("w8a8"), make("weight-only"), weight(32, 16), values(2, 16)
    odd, column = weight(20, 16), stored.codes.t().contiguous().t()
    cases = [
        (plain, (x, stored.codes.float(), stored.scales), UnsupportedError, "float8_e4m3fn"),
        (plain, (x, stored.codes, stored.scales.double()), UnsupportedError, "float32"),
        (plain, (x, stored.codes, stored.scales[:, 0]), ContractError, "scales"),
        (plain, (x, column, stored.scales), UnsupportedError, "contiguous"),
        (plain, (values(2, 8), stored.codes, stored.scales), ContractError, "16 inputs"),
        (plain, (values(16), stored.codes, stored.scales), ContractError, "16 inputs"),
        (plain, (x.double(), stored.codes, stored.scales), UnsupportedError, "float64"),
        (plain, (x.to("meta"), stored.codes, stored.scales), ContractError, "meta"),
        (w8a8, (x.float(), stored.codes, stored.scales), UnsupportedError, "bfloat16"),
        (w8a8, (x, odd.codes, odd.scales), UnsupportedError, "multiples of 16"),
    ]
    for execution, arguments, kind, words in cases:
        with pytest.raises(kind, match=words):
            execution.linear(*arguments)


def test_a_gpu_that_was_never_admitted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8A8 runs on capabilities 9.0 and 12.0; anything else fails and never changes precision."""
    from vflash_adapters.linear.row_fp8 import _capability, check_device

    for capability, admitted in (((9, 0), True), ((12, 0), True), ((8, 9), False), ((10, 0), False)):
        _capability.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        if admitted:
            check_device(torch.device("cuda"))
        else:
            with pytest.raises(UnsupportedError, match="admitted"):
                check_device(torch.device("cuda"))
    _capability.cache_clear()


def test_a_missing_triton_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton is imported only when the fused quantiser runs."""
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "vflash_adapters.linear.triton_rows", raising=False)
    monkeypatch.delattr("vflash_adapters.linear.triton_rows", raising=False)
    execution = RowFP8Execution("w8a8", activation_quantizer="triton")
    stored = weight(16, 16)
    with pytest.raises(UnsupportedError, match="vflash\\[gpu\\]"):
        execution.linear(values(1, 16), stored.codes, stored.scales)


def test_counters_belong_to_each_execution() -> None:
    """Two executions over the same weight count apart."""
    first, second, stored = make("w8a8"), make("weight-only"), weight(16, 16)
    first.linear(values(3, 16), stored.codes, stored.scales)
    first.linear_rows(quantise_rows(values(2, 16)), stored.codes, stored.scales)
    second.linear(values(5, 16), stored.codes, stored.scales)
    assert (first.counters.w8a8_calls, first.counters.rows, first.counters.rows_quantised) == (2, 5, 3)
    assert (second.counters.weight_only_calls, second.counters.rows) == (1, 5)
    assert second.counters.w8a8_calls == 0


def test_seconds_are_measured_only_on_request() -> None:
    """Each part by name; without `measure` there is nothing to read."""
    stored = weight(16, 16)
    timed = RowFP8Execution("w8a8", activation_quantizer="torch", measure=True)
    timed.linear(values(3, 16), stored.codes, stored.scales)
    seconds = timed.seconds()
    assert set(seconds) == {"quantise", "gemm"}
    assert all(value > 0 for value in seconds.values())
    with pytest.raises(ContractError, match="measure=True"):
        make("w8a8").seconds()


def test_a_module_starts_on_meta_and_keeps_its_bias() -> None:
    """Unfilled it refuses to run; filled it holds the loader's own tensors."""
    source = nn.Linear(16, 32)
    module, stored = RowFP8Linear(source, make("weight-only")), weight(32, 16)
    assert module.weight.is_meta
    assert module.weight_scale.is_meta
    assert module.bias is source.bias
    with pytest.raises(ContractError, match="meta"):
        module(values(1, 16).float())
    module.fill(stored.codes, stored.scales)
    assert module.weight.data_ptr() == stored.codes.data_ptr()
    x = values(2, 16).float()
    restored = restore_rows(stored.codes, stored.scales, torch.float32)
    assert torch.equal(module(x), nn.functional.linear(x, restored, source.bias))


def test_a_module_loads_from_a_state_dict() -> None:
    """`weight` and `weight_scale` are assigned; the names are the checkpoint's."""
    module, stored = RowFP8Linear(nn.Linear(16, 32, bias=False), make("weight-only")), weight(32, 16)
    module.load_state_dict({"weight": stored.codes, "weight_scale": stored.scales}, assign=True)
    assert torch.equal(module.weight.view(torch.uint8), stored.codes.view(torch.uint8))
    assert module(values(1, 16)).shape == (1, 32)


def test_a_module_whose_codes_were_converted_refuses_to_run() -> None:
    """`.to(torch.bfloat16)` destroys codes: the next call says so rather than computing nonsense."""
    module, stored = RowFP8Linear(nn.Linear(16, 32, bias=False), make("weight-only")), weight(32, 16)
    module.fill(stored.codes, stored.scales)
    with pytest.raises(UnsupportedError, match="float8_e4m3fn"):
        module.to(torch.bfloat16)(values(1, 16))
