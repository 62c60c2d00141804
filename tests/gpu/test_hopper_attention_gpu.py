"""The dense kernel for compute capability 9.0 on the hardware: against float64, over q, and beyond 2^31 elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attrs import evolve

from attention_cases import MAIN, Case, random_qkv
from vflash_adapters.attention.device_default import DeviceDefaultAttention
from vflash_adapters.attention.hopper.adapter import HopperAttention
from vflash_adapters.attention.hopper.admission import CAPABILITY
from vflash_ports.errors import ContractError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != CAPABILITY,
        reason="needs compute capability 9.0",
    ),
]
SMALL = Case(name="small", grid=(5, 9, 13), audio_rows=31, text_rows=70, heads=6)
LONGEST = Case(name="longest", grid=(37, 64, 80), audio_rows=48, heads=2)
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 1e-3}
"""Relative L2 error: about twice what rounding the weights and the result leaves."""
SHAPES = [
    (1, 1, 2, 128),
    (3, 5, 2, 64),
    (1, 64, 3, 64),
    (1, 100, 2, 128),
    (1, 128, 2, 128),
    (2, 129, 3, 128),
    (2, 192, 2, 64),
    (1, 256, 2, 64),
    (1, 256, 2, 128),
    (1, 276, 2, 64),
    (2, 276, 2, 128),
    (1, 306, 2, 64),
    (1, 334, 2, 64),
    (2, 640, 2, 64),
    (1, 1024, 2, 128),
    (3, 1797, 4, 64),
    (2, 1797, 4, 128),
    (1, 5070, 8, 128),
]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda")


def attend(*tensors: torch.Tensor) -> torch.Tensor:
    from vflash_adapters.attention.hopper import dense

    return dense.attend(*tensors)


def fused_rows(shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[B, S, 3, H, D], from whose thirds come queries and keys that make a softmax with some peaks."""
    batch, rows, heads, head_dim = shape
    generator = torch.Generator(device).manual_seed(rows)
    fused = torch.randn(batch, rows, 3, heads, head_dim, generator=generator, device=device)
    return fused.mul_(1.5).to(dtype)


def softmax_in_float64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    weights = torch.softmax(q @ k.transpose(2, 3) * q.shape[-1] ** -0.5, dim=-1)
    return (weights @ v).transpose(1, 2)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_softmax_average_of_v(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    """Into poisoned memory, again, and over q: within rounding of float64, and the same bits each time."""
    q, k, v = fused_rows(shape, dtype, device).unbind(2)
    expected = softmax_in_float64(q, k, v)
    first, again = (torch.full(shape, float("nan"), dtype=dtype, device=device) for _ in range(2))
    attend(q, k, v, first)
    attend(q, k, v, again)
    assert relative(first, expected) < TOLERANCE[dtype]
    assert torch.equal(first, again)
    over = attend(q, k, v, q)
    assert over.data_ptr() == q.data_ptr()
    assert torch.equal(over, first)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_sequences_heads_and_what_lies_behind_do_not_mix(head_dim: int, device: torch.device) -> None:
    """NaN in one sequence, in another head and in the rows behind the last one of a partial tile reaches nobody."""
    rows = 300
    fused = fused_rows((3, rows + 60, 4, head_dim), torch.bfloat16, device)
    q, k, v = (x[:, :rows] for x in fused.unbind(2))
    clean = attend(q, k, v, torch.empty_like(q, memory_format=torch.contiguous_format))
    assert clean.isfinite().all()
    fused[1] = float("nan")
    fused[:, :, :, 2] = float("nan")
    fused[:, rows:] = float("nan")
    found = attend(q, k, v, torch.empty_like(clean))
    for sequence in (0, 2):
        for head in (0, 1, 3):
            assert torch.equal(found[sequence, :, head], clean[sequence, :, head])
        assert found[sequence, :, 2].isnan().all()
    assert found[1].isnan().all()


def test_only_q_is_written(device: torch.device) -> None:
    """A few heads of a fused projection, with rows behind them: nothing beside the queries changes."""
    fused = fused_rows((2, 400, 6, 128), torch.bfloat16, device)
    before = fused.clone()
    q, k, v = (fused[:, :333, side, 1:5] for side in range(3))
    attend(q, k, v, q)
    changed = fused != before
    assert changed[:, :333, 0, 1:5].any()
    changed[:, :333, 0, 1:5] = False
    assert not changed.any()


def test_sequences_more_than_two_to_the_31_elements_apart(device: torch.device) -> None:
    """The same bits as contiguous copies give, over q too."""
    fused = torch.empty(2, 100_000, 3, 56, 128, dtype=torch.bfloat16, device=device)
    assert fused.stride(0) > 2**31
    q, k, v = (fused[:, :300, side, 50:] for side in range(3))
    for view, values in zip((q, k, v), fused_rows((2, 300, 6, 128), torch.bfloat16, device).unbind(2), strict=True):
        view.copy_(values)
    copies = [x.contiguous() for x in (q, k, v)]
    expected = attend(*copies, torch.empty_like(copies[0]))
    assert torch.equal(attend(q, k, v, q), expected)


def test_190_000_rows(device: torch.device) -> None:
    """The last heads of a real fused projection, whose offsets pass 2^31 elements, through the backend."""
    layout = LONGEST.layout(device)
    fused = torch.empty(layout.rows, 3, 56, 128, dtype=torch.bfloat16, device=device)
    assert fused.numel() > 2**31
    q, k, v = (fused[:, side, 54:] for side in range(3))
    for view, values in zip((q, k, v), random_qkv(LONGEST, device), strict=True):
        view.copy_(values)
    parts = (slice(64), slice(100_000, 100_064), slice(layout.rows - 64, None))
    queries = torch.cat([q[part] for part in parts]).float()
    copies = [x.contiguous() for x in (q, k, v)]
    apart = attend(*(x[None] for x in (*copies, torch.empty_like(copies[0]))))[0]
    out = HopperAttention().prepare(layout)(q, k, v, block=0, evaluation=0)
    assert torch.equal(out, apart)
    for head in range(2):
        weights = torch.softmax(queries[:, head] @ k[:, head].float().T * 128**-0.5, dim=-1)
        expected = (weights @ v[:, head].float()).double()
        found = torch.cat([out[part, head] for part in parts])
        assert relative(found, expected) < 6e-3


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_backend_passes_its_self_test(
    dtype: torch.dtype, head_dim: int, device: torch.device, held: Callable[[], int]
) -> None:
    """Before its first use on a device; nothing stays on the device after it."""
    layout = evolve(SMALL, head_dim=head_dim).layout(device, dtype)
    before = held()
    assert HopperAttention().held_bytes(layout) == 0
    assert held() == before


def test_it_is_the_default_of_its_device(device: torch.device) -> None:
    """`auto` runs it over q, and the report says so."""
    q, k, v = random_qkv(SMALL, device)
    expected = softmax_in_float64(q[None], k[None], v[None])[0]
    prepared = DeviceDefaultAttention().prepare(SMALL.layout(device))
    found = prepared(q, k, v, block=0, evaluation=0)
    assert found.data_ptr() == q.data_ptr()
    assert relative(found, expected) < TOLERANCE[torch.bfloat16]
    report = prepared.report()
    assert (report.backend, report.exact, report.dense_calls) == ("hopper", True, 1)


def test_other_heads_stay_with_cudnn(device: torch.device) -> None:
    """Heads of 32, which the kernel does not take."""
    layout = evolve(SMALL, head_dim=32).layout(device)
    assert DeviceDefaultAttention().prepare(layout).report().backend == "sdpa-cudnn"


def test_rows_that_it_cannot_read_are_refused(device: torch.device) -> None:
    """Heads first in memory: an error with the cure, and q is as before."""
    q, k, v = random_qkv(SMALL, device)
    before = q.clone()
    apart = k.transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.raises(ContractError, match="make it contiguous"):
        HopperAttention().prepare(SMALL.layout(device))(q, apart, v, block=0, evaluation=0)
    assert torch.equal(q, before)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_a_call_does_not_wait_for_the_device(device: torch.device) -> None:
    """Not even the first one after `prepare`."""
    case = evolve(MAIN, heads=2)
    q, k, v = random_qkv(case, device)
    prepared = HopperAttention().prepare(case.layout(device))
    try:
        torch.cuda.set_sync_debug_mode("error")
        prepared(q, k, v, block=0, evaluation=0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert q.isfinite().all()
