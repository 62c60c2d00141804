"""The Triton kernels on the hardware: against the torch reference, the E4M3 cast, strides past 2^31 elements."""

from __future__ import annotations

import pytest
import torch

from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.linear.row_quantiser import quantise_rows
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.linear import ActivationFormat, Fp8Rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DENSE, FP8 = ActivationFormat.DENSE, ActivationFormat.FP8_ROWS
BF16 = torch.bfloat16


@pytest.fixture
def kernels() -> BlockKernels:
    from vflash_adapters.block_kernels.triton_kernels import TritonBlockKernels

    return TritonBlockKernels()


def draw(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(BF16)


def assert_nearly_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Sums in another order move a value across a rounding edge now and then, by one step of BF16."""
    assert float((actual != expected).double().mean()) < 2e-3
    assert torch.allclose(actual.double(), expected.double(), rtol=2**-6, atol=2**-9)


@pytest.mark.parametrize("emit", [DENSE, FP8])
@pytest.mark.parametrize(("tokens", "width"), [(1, 5376), (333, 5376), (70, 96), (5, 7168)])
def test_norm_modulate(kernels: BlockKernels, tokens: int, width: int, emit: ActivationFormat) -> None:
    """Dense values equal the reference's; FP8 rows restore to within half a step of them."""
    x, weight, table = draw(tokens, width, seed=1), draw(width, seed=2), draw(6, 2, width, seed=3)
    rows = torch.randint(0, 6, (tokens,), device="cuda")
    arguments = (x, weight, table[:, 0], table[:, 1], rows)
    expected = TorchBlockKernels().norm_modulate(*arguments, eps=1e-5, emit=DENSE)
    check(kernels.norm_modulate(*arguments, eps=1e-5, emit=emit), expected)


@pytest.mark.parametrize("emit", [DENSE, FP8])
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(("tokens", "width"), [(1, 14336), (333, 14336), (70, 96)])
def test_swiglu(kernels: BlockKernels, tokens: int, width: int, merged: bool, emit: ActivationFormat) -> None:
    """With and without an adapter's residual."""
    packed = draw(tokens, 2 * width, seed=4)
    options = {}
    if merged:
        scale = torch.tensor(0.0625, device="cuda")
        options = {"residual": draw(tokens, 2 * width, seed=5), "residual_scale": scale}
    expected = TorchBlockKernels().swiglu(packed, emit=DENSE, **options)
    check(kernels.swiglu(packed, emit=emit, **options), expected)


def check(result: torch.Tensor | Fp8Rows, expected: torch.Tensor | Fp8Rows) -> None:
    assert isinstance(expected, torch.Tensor)
    if isinstance(result, torch.Tensor):
        assert_nearly_equal(result, expected)
        return
    exact, scales = expected.double(), result.scales.double()
    assert torch.allclose(scales, exact.abs().amax(1, keepdim=True) / 448, rtol=2**-6)
    bound = torch.maximum(exact.abs() / 16, scales * 2**-10) + exact.abs() * 2**-7
    assert ((result.codes.double() * scales - exact).abs() <= bound).all()


@pytest.mark.parametrize(("heads", "head_dim", "rotary"), [(56, 128, 96), (3, 16, 12), (2, 64, 64)])
def test_qk_norm_rope(kernels: BlockKernels, heads: int, head_dim: int, rotary: int) -> None:
    """q and k as the reference's, v untouched."""
    qkv, weights = draw(257, 3 * heads * head_dim, seed=6), draw(2, head_dim, seed=7)
    angle = torch.rand(257, rotary // 2, device="cuda").repeat(1, 2) * 6
    arguments = (weights[0], weights[1], angle.cos(), angle.sin())
    expected = TorchBlockKernels().qk_norm_rope(qkv.clone(), *arguments, heads=heads, eps=1e-5)
    for actual, wanted in zip(kernels.qk_norm_rope(qkv, *arguments, heads=heads, eps=1e-5), expected, strict=True):
        assert_nearly_equal(actual, wanted)


def test_gate_residual_is_bit_equal(kernels: BlockKernels) -> None:
    """No sum is reordered, so nothing may differ."""
    x, update, gate = draw(333, 5376, seed=8), draw(333, 5376, seed=9), draw(6, 5376, seed=10)
    rows = torch.randint(0, 6, (333,), device="cuda")
    expected = TorchBlockKernels().gate_residual(x.clone(), update, gate, rows)
    assert torch.equal(kernels.gate_residual(x, update, gate, rows), expected)


@pytest.mark.parametrize("width", [1, 17, 5376, 7168, 14336, 25600])
def test_the_fused_quantiser_is_bit_equal_to_torch(width: int) -> None:
    """Codes and scales, over ordinary, zero, tiny, huge and broken rows."""
    from vflash_adapters.linear.triton_rows import quantise_rows_triton

    values = draw(64, width, seed=11)
    values[3], values[4] = 0, values[4] * 1e-38
    values[5] *= 1e37
    values[6, 0], values[7, -1] = float("nan"), float("inf")
    fused, plain = quantise_rows_triton(values), quantise_rows(values)
    good = [row for row in range(64) if row not in (6, 7)]
    assert torch.equal(fused.scales[good], plain.scales[good])
    assert torch.equal(fused.codes[good].view(torch.uint8), plain.codes[good].view(torch.uint8))
    assert not fused.scales[[6, 7]].isfinite().any()


def test_row_offsets_pass_2_to_the_31(kernels: BlockKernels) -> None:
    """Half views whose rows lie 2^29 elements apart: the last one starts beyond 2^31 elements."""
    from vflash_adapters.linear.triton_rows import quantise_rows_triton

    storage = torch.empty(2**31 + 2**29 + 4096, dtype=BF16, device="cuda")
    far = storage.as_strided((6, 2048), (2**29, 1))
    values = draw(6, 2048, seed=12)
    far.copy_(values)
    assert torch.equal(quantise_rows_triton(far).codes.view(torch.uint8), quantise_rows(values).codes.view(torch.uint8))
    assert torch.equal(kernels.swiglu(far, emit=DENSE), kernels.swiglu(values, emit=DENSE))
    rows, table = torch.zeros(6, dtype=torch.int64, device="cuda"), draw(1, 2048, seed=13)
    modulation = (table[0], table, table, rows)
    near = kernels.norm_modulate(values, *modulation, eps=1e-5, emit=DENSE)
    assert torch.equal(kernels.norm_modulate(far, *modulation, eps=1e-5, emit=DENSE), near)
    assert torch.equal(
        kernels.gate_residual(far, values, table, rows), kernels.gate_residual(values.clone(), values, table, rows)
    )
