"""Every attention backend computes the same softmax, whatever the strides of its inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from attrs import evolve

from vflash_adapters.attention.device_default import DEVICE_BACKENDS, DeviceDefaultAttention, exact_backend
from vflash_adapters.attention.naive import NaiveAttention
from vflash_adapters.attention.sdpa import SDPA_BACKENDS, sdpa_attention
from vflash_adapters.attention.veda.adapter import VedaAttention
from vflash_adapters.attention.veda.budget import Budget, BudgetKind
from vflash_adapters.attention.veda.reference import ReferenceKernels
from vflash_ports.attention import Attention, AttentionLayout, Segment, SegmentKind
from vflash_ports.errors import UnsupportedError

HEADS, HEAD_DIM = 4, 32
ROWS = 9 + 6 + 2 * 6 * 10

EXACT: list[Attention] = [NaiveAttention(), NaiveAttention(score_bytes=4096), sdpa_attention("sdpa")]


def veda(ratio: float) -> VedaAttention:
    return VedaAttention(
        kernels=ReferenceKernels(),
        dense=sdpa_attention("sdpa"),
        dense_edge_layers=0,
        target_budget=Budget(kind=BudgetKind.RATIO, value=ratio),
    )


KEEPS_ALL: list[Attention] = [*EXACT, veda(1.0)]
ALL: list[Attention] = [*KEEPS_ALL, veda(0.3)]


def layout(dtype: torch.dtype = torch.float32, device: str = "cpu") -> AttentionLayout:
    segments = (
        Segment(kind=SegmentKind.TEXT, start=0, rows=9),
        Segment(kind=SegmentKind.TARGET_AUDIO, start=9, rows=6),
        Segment(kind=SegmentKind.TARGET_VIDEO, start=15, rows=120, grid=(2, 6, 10)),
    )
    return AttentionLayout(
        segments=segments,
        rows=ROWS,
        heads=HEADS,
        head_dim=HEAD_DIM,
        blocks=8,
        evaluations=2,
        device=torch.device(device),
        dtype=dtype,
    )


def softmax_in_float64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    weights = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1)
    return (weights @ v).transpose(0, 1)


def random_qkv(dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v as thirds of one fused projection: rows strided, last stride 1."""
    fused = torch.randn(ROWS, 3, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(seed)).to(dtype)
    q, k, v = fused.unbind(1)
    return q, k, v


@pytest.mark.parametrize("backend", ALL, ids=lambda backend: backend.name)
def test_nothing_is_held_without_a_predictor(backend: Attention) -> None:
    """What an exact backend allocates for a call is gone with it."""
    assert backend.held_bytes(layout()) == 0


@pytest.mark.parametrize("backend", [*DEVICE_BACKENDS, DeviceDefaultAttention()], ids=lambda backend: backend.name)
def test_what_cannot_run_is_told_by_both_ways_in(backend: Attention) -> None:
    """`held_bytes` refuses what `prepare` refuses, in the same words."""
    told = []
    for ask in (backend.held_bytes, backend.prepare):
        with pytest.raises(UnsupportedError) as caught:
            ask(layout(device="meta"))
        told.append(str(caught.value))
    assert told[0] == told[1]


@pytest.mark.parametrize("backend", KEEPS_ALL, ids=lambda backend: backend.name)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6), (torch.bfloat16, 8e-3)]
)
def test_output_is_the_softmax_average_of_v(backend: Attention, dtype: torch.dtype, tolerance: float) -> None:
    """Relative L2 error against float64 stays at the dtype's rounding; the output is contiguous, of q's dtype."""
    q, k, v = random_qkv(dtype)
    out = backend.prepare(layout(dtype))(q, k, v, block=0, evaluation=0)
    expected = softmax_in_float64(q, k, v)
    assert out.shape == q.shape
    assert out.dtype == dtype
    assert out.is_contiguous()
    assert (out.double() - expected).norm() / expected.norm() < tolerance


@pytest.mark.parametrize("backend", ALL, ids=lambda backend: backend.name)
def test_strided_and_contiguous_inputs_agree_bit_for_bit(backend: Attention) -> None:
    """A view of a fused projection reads the same rows as its own copy, and is not written to."""
    q, k, v = random_qkv(torch.float32)
    before = [x.clone() for x in (q, k, v)]
    attend = backend.prepare(layout())
    from_views = attend(q, k, v, block=0, evaluation=0)
    from_copies = attend(*(x.contiguous() for x in (q, k, v)), block=1, evaluation=0)
    assert torch.equal(from_views, from_copies)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), before, strict=True))


@pytest.mark.parametrize("backend", KEEPS_ALL, ids=lambda backend: backend.name)
def test_report_counts_the_calls_and_names_the_backend(backend: Attention) -> None:
    """The receipt's counts are per prepared request: a second prepare starts from zero."""
    q, k, v = random_qkv(torch.float32)
    attend = backend.prepare(layout())
    for block in range(3):
        attend(q, k, v, block=block, evaluation=0)
    assert (attend.report().backend, attend.report().dense_calls) == (backend.name, 3)
    assert attend.report().exact
    assert attend.report().sparse_calls == 0
    assert backend.prepare(layout()).report().dense_calls == 0


@pytest.mark.parametrize("name", ["sdpa-flash", "sdpa-cudnn", "hopper"])
def test_a_kernel_of_another_device_is_refused_with_the_cure(name: str) -> None:
    """Nothing falls back: a CUDA kernel named on the CPU stops in prepare and says what to choose."""
    with pytest.raises(UnsupportedError, match=r"runs on cuda.*choose 'sdpa"):
        exact_backend(name).prepare(layout(torch.bfloat16))


def test_the_cpu_kernel_is_refused_on_cuda() -> None:
    """`sdpa` would let torch choose among CUDA kernels, so it is refused there."""
    with pytest.raises(UnsupportedError, match="sdpa-cudnn"):
        sdpa_attention("sdpa").prepare(layout(torch.bfloat16, device="cuda"))


def test_a_dtype_the_kernel_does_not_take_is_refused() -> None:
    """float32 on a half-precision kernel is an error, never a cast."""
    with pytest.raises(UnsupportedError, match="bfloat16, float16"):
        sdpa_attention("sdpa-flash").prepare(layout(torch.float32, device="cuda"))


def test_every_sdpa_backend_has_its_own_name() -> None:
    """Names are what users and receipts say."""
    assert [backend.name for backend in SDPA_BACKENDS] == ["sdpa", "sdpa-flash", "sdpa-cudnn"]


@pytest.mark.parametrize("backend", EXACT, ids=lambda backend: backend.name)
def test_rows_beyond_two_to_the_31_elements_are_addressed_right(backend: Attention, tmp_path: Path) -> None:
    """190,000 fused rows of 3 x 56 x 128 span 2^31.9 elements: the same offsets, with fewer and wider rows."""
    heads, head_dim, rows = 1, 8, 48
    row_stride = 190_000 * 3 * 56 * 128 // rows
    flat = torch.from_file(str(tmp_path / "rows"), shared=True, size=rows * row_stride, dtype=torch.bfloat16)
    assert flat.numel() > 2**31
    small = torch.randn(3, rows, heads, head_dim, generator=torch.Generator().manual_seed(1)).bfloat16()
    wide = [
        flat.as_strided((rows, heads, head_dim), (row_stride, head_dim, 1), offset * head_dim) for offset in range(3)
    ]
    for view, values in zip(wide, small, strict=True):
        view.copy_(values)
    segments = (Segment(kind=SegmentKind.TEXT, start=0, rows=rows),)
    geometry = evolve(layout(torch.bfloat16), segments=segments, rows=rows, heads=heads, head_dim=head_dim)
    attend = backend.prepare(geometry)
    out = attend(*wide, block=0, evaluation=0)
    assert torch.equal(out, attend(*small, block=0, evaluation=0))
