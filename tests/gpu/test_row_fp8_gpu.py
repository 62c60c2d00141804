"""Row-scaled FP8 linears on the hardware."""

from __future__ import annotations

import pytest
import torch

from vflash_adapters.linear.row_fp8 import RowFP8Execution
from vflash_adapters.linear.row_quantiser import quantise_rows, restore_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def draw(rows: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, width, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("quantizer", ["torch", "triton"])
@pytest.mark.parametrize("rows", [0, 1, 7, 300])
def test_w8a8_is_the_product_of_the_quantised_operands(quantizer: str, rows: int) -> None:
    """Within BF16 rounding and the accumulator's precision of float64 over the same codes."""
    values, weight = draw(rows, 5376, 1), quantise_rows(draw(7168, 5376, 2))
    execution = RowFP8Execution("w8a8", activation_quantizer=quantizer)
    result = execution.linear(values, weight.codes, weight.scales)
    assert result.shape == (rows, 7168)
    if rows:
        stored = quantise_rows(values)
        exact = (stored.codes.double() * stored.scales.double()) @ (weight.codes.double() * weight.scales.double()).T
        assert float((result.double() - exact).norm() / exact.norm()) < 4e-3
    assert execution.counters.w8a8_calls == 1
    assert execution.counters.rows_quantised == rows


def test_bias_is_added() -> None:
    """The scaled GEMM adds a BF16 bias."""
    values, weight, bias = draw(33, 256, 3), quantise_rows(draw(128, 256, 4)), draw(1, 128, 5)[0]
    execution = RowFP8Execution("w8a8", activation_quantizer="triton")
    plain = execution.linear(values, weight.codes, weight.scales)
    biased = execution.linear(values, weight.codes, weight.scales, bias)
    assert torch.allclose(biased.float(), plain.float() + bias.float(), rtol=2e-2, atol=2e-2)


def test_weight_only_equals_the_restored_gemm() -> None:
    """Value by value, on the device."""
    values, weight = draw(65, 512, 6), quantise_rows(draw(96, 512, 7))
    restored = restore_rows(weight.codes, weight.scales, torch.bfloat16)
    single = (weight.codes.float() * weight.scales).bfloat16()
    assert torch.equal(restored, single)
    for restorer in ("torch", "triton"):
        result = RowFP8Execution("weight-only", restorer=restorer).linear(values, weight.codes, weight.scales)
        assert torch.equal(result, torch.nn.functional.linear(values, restored))


def test_timing_waits_for_nobody() -> None:
    """Seconds are read after the caller's own synchronisation."""
    weight = quantise_rows(draw(128, 256, 8))
    execution = RowFP8Execution("w8a8", activation_quantizer="triton", measure=True)
    execution.linear(draw(64, 256, 9), weight.codes, weight.scales)
    torch.cuda.synchronize()
    assert set(execution.seconds()) == {"quantise", "gemm"}
