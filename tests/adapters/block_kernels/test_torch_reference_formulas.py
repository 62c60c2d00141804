"""The torch reference in float64 against element-wise formulas, over drawn shapes and layouts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_ports.linear import ActivationFormat, Fp8Rows

KERNELS = TorchBlockKernels()
SEEDS = st.integers(0, 2**16)
TOKENS, WIDTHS = st.integers(0, 9), st.integers(1, 17)
CHECK = settings(deadline=None, max_examples=30)


def draw(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vflash_adapters.block_kernels.torch_reference._CHUNK_ELEMENTS", 20)


@CHECK
@given(tokens=TOKENS, width=WIDTHS, table=st.integers(1, 5), seed=SEEDS)
def check_norm_modulate(tokens: int, width: int, table: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x, weight, shift, scale = draw(g, tokens, width), draw(g, width), draw(g, table, width), draw(g, table, width)
    rows = torch.randint(0, table, (tokens,), generator=g)
    result = KERNELS.norm_modulate(x, weight, shift, scale, rows, eps=1e-3, emit=ActivationFormat.DENSE)
    assert isinstance(result, torch.Tensor)
    for token in range(tokens):
        mean = math.fsum(value**2 for value in x[token].tolist()) / width
        for column in range(width):
            normed = float(x[token, column]) / math.sqrt(mean + 1e-3) * float(weight[column])
            expected = normed * (1 + float(scale[rows[token], column])) + float(shift[rows[token], column])
            assert float(result[token, column]) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_norm_modulate() -> None:
    """x / sqrt(mean(x^2) + eps) * weight * (1 + scale) + shift, the table row of each token."""
    check_norm_modulate()


@CHECK
@given(tokens=TOKENS, heads=st.integers(1, 3), half=st.integers(1, 4), passing=st.integers(0, 3), seed=SEEDS)
def check_qk_norm_rope(tokens: int, heads: int, half: int, passing: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    width = 2 * half + passing
    qkv, weights = draw(g, tokens, 3 * heads * width), draw(g, 2, width)
    cos, sin = draw(g, tokens, 2 * half), draw(g, tokens, 2 * half)
    before = qkv.clone().unflatten(1, (3, heads, width))
    parts = KERNELS.qk_norm_rope(qkv, weights[0], weights[1], cos, sin, heads=heads, eps=1e-3)
    assert torch.equal(parts[2], before[:, 2])
    for part in range(2):
        for token in range(tokens):
            for head in range(heads):
                x = before[token, part, head]
                norm = math.sqrt(math.fsum(value**2 for value in x.tolist()) / width + 1e-3)
                n = [float(x[c]) / norm * float(weights[part, c]) for c in range(width)]
                for c in range(width):
                    expected = n[c]
                    if c < 2 * half:
                        partner = -n[c + half] if c < half else n[c - half]
                        expected = n[c] * float(cos[token, c]) + partner * float(sin[token, c])
                    assert float(parts[part][token, head, c]) == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_qk_norm_rope() -> None:
    """Per head x / rms * weight, then (a, b) -> (a cos - b sin, b cos + a sin) in the leading channels."""
    check_qk_norm_rope()


@CHECK
@given(tokens=TOKENS, width=WIDTHS, table=st.integers(1, 5), seed=SEEDS)
def check_gate_residual(tokens: int, width: int, table: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x, update, gate = draw(g, tokens, width), draw(g, tokens, width), draw(g, table, width)
    rows = torch.randint(0, table, (tokens,), generator=g)
    before = x.clone()
    result = KERNELS.gate_residual(x, update, gate, rows)
    for token in range(tokens):
        assert torch.allclose(result[token], before[token] + gate[rows[token]] * update[token], rtol=1e-12, atol=1e-12)


def test_gate_residual() -> None:
    """x + gate * update, the table row of each token."""
    check_gate_residual()


@CHECK
@given(tokens=TOKENS, width=WIDTHS, scale=st.floats(-2, 2), merged=st.booleans(), seed=SEEDS)
def check_swiglu(tokens: int, width: int, scale: float, merged: bool, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    packed, residual = draw(g, tokens, 2 * width), draw(g, tokens, 2 * width)
    options = {"residual": residual, "residual_scale": torch.tensor(scale, dtype=torch.float64)} if merged else {}
    result = KERNELS.swiglu(packed, emit=ActivationFormat.DENSE, **options)
    assert isinstance(result, torch.Tensor)
    total = packed + residual * scale if merged else packed
    for token in range(tokens):
        for column in range(width):
            value, gate = float(total[token, column]), float(total[token, width + column])
            assert float(result[token, column]) == pytest.approx(value * gate / (1 + math.exp(-gate)), rel=1e-10)


def test_swiglu() -> None:
    """value * gate / (1 + exp(-gate)), an adapter's residual added first where there is one."""
    check_swiglu()


@CHECK
@given(tokens=st.integers(1, 9), width=WIDTHS, seed=SEEDS)
def check_fp8_output(tokens: int, width: int, seed: int) -> None:
    packed = draw(torch.Generator().manual_seed(seed), tokens, 2 * width)
    dense, rows = (KERNELS.swiglu(packed, emit=emit) for emit in ActivationFormat)
    assert isinstance(dense, torch.Tensor)
    assert isinstance(rows, Fp8Rows)
    error = (rows.codes.double() * rows.scales.double() - dense).abs()
    assert (error <= torch.maximum(dense.abs() / 16, rows.scales.double() * 2**-10) * (1 + 1e-5)).all()


def test_fp8_output() -> None:
    """What a stage emits in FP8 is its dense result to within half an E4M3 step."""
    check_fp8_output()
