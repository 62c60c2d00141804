"""Veda's kernels on the hardware: against the torch reference, at 190,000 rows, and without waiting for the device."""

from __future__ import annotations

import pytest
import torch

from attention_cases import Case, random_plan, random_qkv
from attention_checks import CHECKED, check_case
from vflash_adapters.attention.hopper.admission import CAPABILITY
from vflash_adapters.attention.sdpa import sdpa_attention
from vflash_adapters.attention.veda.budget import Budget, BudgetKind
from vflash_adapters.attention.veda.fast import FastSparseCall, HopperKernels, TritonKernels
from vflash_adapters.attention.veda.kept_lists import kept_mask
from vflash_adapters.attention.veda.reference import attend_kept
from vflash_adapters.attention.veda.self_test import check_kernels
from vflash_adapters.attention.veda.tiling import Tiling, build_tiling, tiled_spans

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LONGEST = Case(name="longest", grid=(37, 64, 80), audio_rows=48, heads=2)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda")


@pytest.fixture(params=["triton", "hopper"])
def kernels(request: pytest.FixtureRequest) -> TritonKernels | HopperKernels:
    if request.param == "triton":
        return TritonKernels()
    if torch.cuda.get_device_capability() != CAPABILITY:
        pytest.skip("needs compute capability 9.0")
    return HopperKernels()


def keep_a_tenth(case: Case, device: torch.device) -> Tiling:
    spans = tiled_spans(case.layout(device), tile_conditions=False)
    return build_tiling(spans, random_plan(case), Budget(kind=BudgetKind.RATIO, value=0.1), None, device)


@pytest.mark.parametrize("case", CHECKED, ids=lambda case: case.name)
def test_every_kernel_equals_the_reference(
    case: Case, kernels: TritonKernels | HopperKernels, device: torch.device
) -> None:
    """Pooling, scoring, selection and attention; tolerances are in `check_case`."""
    check_case(case, device, kernels.prepare)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_self_test_passes(kernels: TritonKernels | HopperKernels, dtype: torch.dtype, device: torch.device) -> None:
    """What runs once on every device before its first use."""
    check_kernels(kernels, device, dtype, 128)


def test_190_000_rows(kernels: TritonKernels | HopperKernels, device: torch.device) -> None:
    """q, k and v are the last heads of a real fused projection, whose offsets pass 2^32 elements."""
    layout = LONGEST.layout(device)
    assert layout.rows == 190_000
    fused = torch.empty(layout.rows, 3, 56, 128, dtype=torch.bfloat16, device=device)
    q, k, v = (fused[:, side, 54:] for side in range(3))
    for view, values in zip((q, k, v), random_qkv(LONGEST, device), strict=True):
        view.copy_(values)
    tiling = keep_a_tenth(LONGEST, device)
    head_shape = torch.tensor(random_plan(LONGEST).head_shape[0], dtype=torch.int32, device=device)
    call = kernels.prepare(tiling, layout)
    assert isinstance(call, FastSparseCall)
    queries = q.float()
    found = call(q, k, v, projections=None, head_shape=head_shape).float()
    mask = kept_mask(call.kept, tiling, head_shape).to(device)
    expected = attend_kept(queries, k.float(), v.float(), mask, tiling=tiling, head_shape=head_shape)
    assert (found - expected).norm() / expected.norm() < 6e-3


@pytest.mark.parametrize("name", ["sdpa-flash", "sdpa-cudnn"])
def test_exact_backends_at_190_000_rows(name: str, device: torch.device) -> None:
    """The last rows of the last heads against float32."""
    layout = LONGEST.layout(device)
    fused = torch.empty(layout.rows, 3, 56, 128, dtype=torch.bfloat16, device=device)
    q, k, v = (fused[:, side, 54:] for side in range(3))
    for view, values in zip((q, k, v), random_qkv(LONGEST, device), strict=True):
        view.copy_(values)
    rows = slice(layout.rows - 64, None)
    queries = q[rows].float()
    out = sdpa_attention(name).prepare(layout)(q, k, v, block=0, evaluation=0)  # may be written over q
    for head in range(2):
        weights = torch.softmax(queries[:, head] @ k[:, head].float().T * 128**-0.5, dim=-1)
        expected = weights @ v[:, head].float()
        assert (out[rows, head].float() - expected).norm() / expected.norm() < 6e-3


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_a_call_does_not_wait_for_the_device(kernels: TritonKernels | HopperKernels, device: torch.device) -> None:
    """After a first call has compiled the kernels, torch's own check finds no synchronisation."""
    case = CHECKED[0]
    tiling, (q, k, v) = keep_a_tenth(case, device), random_qkv(case, device)
    head_shape = torch.arange(case.heads, dtype=torch.int32, device=device)
    call = kernels.prepare(tiling, case.layout(device))
    again = q.clone()
    first = call(q, k, v, projections=None, head_shape=head_shape)
    try:
        torch.cuda.set_sync_debug_mode("error")
        second = call(again, k, v, projections=None, head_shape=head_shape)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first, second)


def test_the_result_is_written_over_q_and_nowhere_else(
    kernels: TritonKernels | HopperKernels, device: torch.device
) -> None:
    """q as a strided view of the fused projection: its own elements change, its neighbours do not."""
    case = CHECKED[0]
    fused = torch.randn(case.rows, 3, case.heads + 1, 128, device=device).bfloat16()
    before = fused.clone()
    q, k, v = (fused[:, side, : case.heads] for side in range(3))
    head_shape = torch.arange(case.heads, dtype=torch.int32, device=device)
    call = kernels.prepare(keep_a_tenth(case, device), case.layout(device))
    copied = call(before[:, 0, : case.heads].clone(), k, v, projections=None, head_shape=head_shape)
    found = call(q, k, v, projections=None, head_shape=head_shape)
    assert found.data_ptr() == q.data_ptr()
    assert torch.equal(found, copied)
    assert torch.equal(fused[:, 1:], before[:, 1:])
    assert torch.equal(fused[:, 0, case.heads :], before[:, 0, case.heads :])
