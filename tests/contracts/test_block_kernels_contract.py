"""What every set of block kernels promises: the formula, the rounding order, strides, formats and ownership."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.linear import ActivationFormat, Fp8Rows

KERNELS: dict[str, BlockKernels] = {"torch": TorchBlockKernels()}
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # read by Triton at its import, so a process has one mode
if INTERPRETED:
    from vflash_adapters.block_kernels.triton_kernels import TritonBlockKernels

    KERNELS["triton"] = TritonBlockKernels()
# The interpreter truncates on the way to bfloat16, where the hardware rounds; to float16 both round to nearest even.
LOW = torch.float16 if INTERPRETED else torch.bfloat16
DENSE, FP8 = ActivationFormat.DENSE, ActivationFormat.FP8_ROWS
EPS = 1e-5
# the same few operations, rounded to 24, 11 or 8 bits each
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.fixture(params=sorted(KERNELS))
def kernels(request: pytest.FixtureRequest) -> BlockKernels:
    return KERNELS[request.param]


@pytest.fixture(params=[torch.float32, LOW], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's run")
def test_the_triton_kernels_pass_this_suite_in_the_interpreter() -> None:
    """A second process runs the whole file with Triton interpreted; the E4M3 cast itself is tested on a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "triton"]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def table_rows(tokens: int, table: int) -> torch.Tensor:
    return torch.randint(0, table, (tokens,), generator=torch.Generator().manual_seed(99))


def assert_close(actual: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    assert float((actual.double() - exact).norm() / exact.norm()) < TOLERANCE[dtype]


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight


class ModulationCase:
    """x [S, C] and a [R, 2C] table whose halves are row-strided views, as a block's six chunks are."""

    def __init__(self, dtype: torch.dtype, tokens: int = 41, width: int = 48) -> None:
        self.x = draw(tokens, width, seed=1, dtype=dtype) * 3
        self.weight = draw(width, seed=2, dtype=dtype)
        self.shift, self.scale = draw(6, 2 * width, seed=3, dtype=dtype).chunk(2, dim=1)
        self.rows = table_rows(tokens, 6)

    def run(self, kernels: BlockKernels, emit: ActivationFormat = DENSE) -> torch.Tensor | Fp8Rows:
        return kernels.norm_modulate(self.x, self.weight, self.shift, self.scale, self.rows, eps=EPS, emit=emit)


def test_norm_modulate_is_its_formula(kernels: BlockKernels, dtype: torch.dtype) -> None:
    """RMSNorm(x) * (1 + scale[rows]) + shift[rows], against float64."""
    case = ModulationCase(dtype)
    before = case.x.clone()
    exact = rms_norm(case.x.double(), case.weight.double()) * (1 + case.scale.double()[case.rows])
    assert_close(case.run(kernels), exact + case.shift.double()[case.rows], dtype)
    assert torch.equal(case.x, before)


def test_norm_modulate_rounds_where_the_reference_does(kernels: BlockKernels) -> None:
    """Rounding after the norm, after 1 + scale, after the product, after the sum: all but reordered sums are equal."""
    case = ModulationCase(LOW)
    normed = rms_norm(case.x.float(), case.weight.float()).to(LOW)
    expected = normed * (1.0 + case.scale)[case.rows] + case.shift[case.rows]
    result = case.run(kernels)
    assert isinstance(result, torch.Tensor)
    assert (result != expected).float().mean() < 0.01


@pytest.mark.parametrize("rotary", [6, 12, 16])
def test_qk_norm_rope_is_its_formula(kernels: BlockKernels, dtype: torch.dtype, rotary: int) -> None:
    """Per-head RMSNorm of q and k, rotate-half of the leading channels, v untouched; against float64."""
    tokens, heads, width = 29, 3, 16
    qkv = draw(tokens, 3 * heads * width, seed=4, dtype=dtype)
    weights = draw(2, width, seed=5, dtype=dtype)
    angle = draw(tokens, rotary // 2, seed=6).repeat(1, 2)
    q, k, v = (part.double() for part in qkv.clone().unflatten(1, (3, heads, width)).unbind(1))
    results = kernels.qk_norm_rope(qkv, weights[0], weights[1], angle.cos(), angle.sin(), heads=heads, eps=EPS)
    for result, source, weight in zip(results[:2], (q, k), weights, strict=True):
        assert_close(result, rotated(rms_norm(source, weight.double()), angle.double()), dtype)
    assert torch.equal(results[2].double(), v)
    assert all(part.shape == (tokens, heads, width) and part.stride(-1) == 1 for part in results)


def rotated(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    half = angle.shape[1] // 2
    cos, sin = angle.cos()[:, None, :half], angle.sin()[:, None, :half]
    first, second, passing = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, passing), dim=-1)


def test_qk_norm_rope_rounds_where_the_reference_does(kernels: BlockKernels) -> None:
    """Cosine and sine are rounded first; then the norm, each product and the sum."""
    qkv, weight = draw(29, 3 * 2 * 16, seed=7, dtype=LOW), draw(16, seed=8, dtype=LOW)
    angle = draw(29, 6, seed=9).repeat(1, 2)
    normed = rms_norm(qkv.float().unflatten(1, (3, 2, 16))[:, 0], weight.float()).to(LOW)
    cos, sin = (t[:, None].to(LOW) for t in (angle.cos(), angle.sin()))
    first, second = normed[..., :6], normed[..., 6:12]
    expected = torch.cat(
        (
            first * cos[..., :6] + (-second) * sin[..., :6],
            second * cos[..., 6:] + first * sin[..., 6:],
            normed[..., 12:],
        ),
        dim=-1,
    )
    q_SHD, _, _ = kernels.qk_norm_rope(qkv, weight, weight, angle.cos(), angle.sin(), heads=2, eps=EPS)
    assert (q_SHD != expected).float().mean() < 0.01


def test_gate_residual_is_written_into_x(kernels: BlockKernels, dtype: torch.dtype) -> None:
    """x + gate[rows] * update, product and sum each rounded, in x's own storage."""
    x, update = draw(41, 48, seed=10, dtype=dtype), draw(41, 48, seed=11, dtype=dtype)
    gate, rows = draw(6, 96, seed=12, dtype=dtype)[:, :48], table_rows(41, 6)
    expected = x + gate[rows] * update
    result = kernels.gate_residual(x, update, gate, rows)
    assert result.data_ptr() == x.data_ptr()
    assert torch.equal(result, expected)
    assert torch.equal(x, expected)


def test_swiglu_is_its_formula(kernels: BlockKernels, dtype: torch.dtype) -> None:
    """value * silu(gate) with value in the first half; against float64."""
    packed = draw(41, 96, seed=13, dtype=dtype)
    value, gate = packed.double().chunk(2, dim=1)
    result = kernels.swiglu(packed, emit=DENSE)
    assert isinstance(result, torch.Tensor)
    assert_close(result, value * gate * gate.sigmoid(), dtype)


def test_swiglu_merges_an_adapter_first(kernels: BlockKernels, dtype: torch.dtype) -> None:
    """packed + residual * scale, then value * silu(gate); against float64."""
    packed, residual = draw(41, 96, seed=21, dtype=dtype), draw(41, 96, seed=22, dtype=dtype)
    value, gate = (packed.double() + residual.double() * 0.0625).chunk(2, dim=1)
    before = packed.clone(), residual.clone()
    result = kernels.swiglu(packed, emit=DENSE, residual=residual, residual_scale=torch.tensor(0.0625))
    assert isinstance(result, torch.Tensor)
    assert_close(result, value * gate * gate.sigmoid(), dtype)
    assert torch.equal(packed, before[0])
    assert torch.equal(residual, before[1])


def test_the_merge_rounds_after_scale_and_after_sum(kernels: BlockKernels) -> None:
    """Scale, merge, SiLU and product each round, at a scale that is no power of two."""
    packed, residual = (draw(41, 96, seed=seed, dtype=LOW) for seed in (23, 24))
    value, gate = (packed + (residual.float() * 0.3).to(LOW)).chunk(2, dim=1)
    expected = value * (gate.float() * gate.float().sigmoid()).to(LOW)
    result = kernels.swiglu(packed, emit=DENSE, residual=residual, residual_scale=torch.tensor(0.3))
    assert isinstance(result, torch.Tensor)
    assert (result != expected).float().mean() < 0.01


def test_swiglu_rounds_silu_before_the_product(kernels: BlockKernels) -> None:
    """Rounding after SiLU and after the product."""
    packed = draw(41, 96, seed=14, dtype=LOW)
    value, gate = packed.chunk(2, dim=1)
    expected = value * (gate.float() * gate.float().sigmoid()).to(LOW)
    result = kernels.swiglu(packed, emit=DENSE)
    assert isinstance(result, torch.Tensor)
    assert (result != expected).float().mean() < 0.01


@pytest.mark.skipif(INTERPRETED, reason="the interpreter's E4M3 cast does not round as the hardware does")
def test_fp8_output_is_the_dense_output_quantised(kernels: BlockKernels, dtype: torch.dtype) -> None:
    """Each element is within half an E4M3 step of the dense result; the scale is the row's amax / 448."""
    case, packed = ModulationCase(dtype), draw(41, 96, seed=15, dtype=dtype)
    pairs = (
        (case.run(kernels, DENSE), case.run(kernels, FP8)),
        (kernels.swiglu(packed, emit=DENSE), kernels.swiglu(packed, emit=FP8)),
    )
    for dense, rows in pairs:
        assert isinstance(dense, torch.Tensor)
        assert isinstance(rows, Fp8Rows)
        assert rows.codes.dtype == torch.float8_e4m3fn
        assert rows.codes.shape == dense.shape
        exact, scales = dense.double(), rows.scales.double()
        assert torch.allclose(scales, exact.abs().amax(1, keepdim=True) / 448, rtol=1e-6)
        bound = torch.maximum(exact.abs() / 16, scales * 2**-10)
        assert ((rows.codes.double() * scales - exact).abs() <= bound * (1 + 1e-5)).all()


def test_no_tokens_are_no_error(kernels: BlockKernels, dtype: torch.dtype) -> None:
    """Empty chunks pass through every stage and format."""
    case = ModulationCase(dtype, tokens=0)
    for emit in (DENSE, FP8):
        for result in (case.run(kernels, emit), kernels.swiglu(case.x, emit=emit)):
            values = result.codes if isinstance(result, Fp8Rows) else result
            assert values.shape[0] == 0
    assert kernels.gate_residual(case.x, case.x, case.scale, case.rows).shape == (0, 48)


def test_row_strided_inputs_are_read_in_place(kernels: BlockKernels, dtype: torch.dtype) -> None:
    """A row range or a half of a wider tensor gives what its contiguous copy gives."""
    case, wide = ModulationCase(dtype), draw(41, 192, seed=16, dtype=dtype)
    contiguous = kernels.swiglu(wide[:, 96:].contiguous(), emit=DENSE)
    strided = kernels.swiglu(wide[:, 96:], emit=DENSE)
    assert isinstance(contiguous, torch.Tensor)
    assert isinstance(strided, torch.Tensor)
    assert torch.equal(strided, contiguous)
    whole = case.run(kernels)
    case.x, case.rows = case.x[7:23], case.rows[7:23]
    part = case.run(kernels)
    assert isinstance(whole, torch.Tensor)
    assert isinstance(part, torch.Tensor)
    assert torch.equal(part, whole[7:23])
