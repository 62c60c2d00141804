"""The dense kernel's backend without the device it is made for: what it refuses, what it tests, what `auto` chooses."""

from __future__ import annotations

import sys
from functools import partial

import pytest
import torch
from attrs import evolve

from vflash_adapters.attention.device_default import DeviceDefaultAttention, default_backend, exact_backend
from vflash_adapters.attention.exact import ExactAttentionFn
from vflash_adapters.attention.hopper import dense
from vflash_adapters.attention.hopper.adapter import CURE, HopperAttention, attend_rows, misfit
from vflash_adapters.attention.hopper.admission import HEAD_DIMS, admits
from vflash_adapters.attention.hopper.self_test import check_dense, few_rows
from vflash_adapters.attention.naive import NaiveAttention
from vflash_ports.attention import AttentionLayout
from vflash_ports.errors import ContractError, UnsupportedError

CPU = torch.device("cpu")
LAYOUT = AttentionLayout(
    segments=(), rows=70, heads=3, head_dim=64, blocks=1, evaluations=1, device=torch.device("cuda"),
    dtype=torch.bfloat16,
)  # fmt: skip


def standing_in(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`dense.attend` in torch."""
    geometry = evolve(LAYOUT, rows=q.shape[1], heads=q.shape[2], head_dim=q.shape[3], device=q.device, dtype=q.dtype)
    naive = NaiveAttention().prepare(geometry)
    for sequence in range(q.shape[0]):
        out[sequence] = naive(q[sequence], k[sequence], v[sequence], block=0, evaluation=0)
    return out


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch):
    """Makes every CUDA device one of this compute capability."""

    def capable(*capability: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    return capable


def refusals(layout: AttentionLayout) -> list[str]:
    told = []
    for ask in (HopperAttention().held_bytes, HopperAttention().prepare):
        with pytest.raises(UnsupportedError) as caught:
            ask(layout)
        told.append(str(caught.value))
    return told


@pytest.mark.parametrize(
    ("capability", "changes", "said"),
    [
        ((9, 0), {"device": CPU}, "runs on cuda, but the model is on cpu"),
        ((8, 9), {}, "runs on compute capability 9.0, but cuda has 8.9"),
        ((10, 0), {}, "runs on compute capability 9.0, but cuda has 10.0"),
        ((9, 0), {"dtype": torch.float32}, "takes bfloat16, float16, but the model is torch.float32"),
        ((9, 0), {"head_dim": 32}, "takes heads of 64 or 128, but the model has heads of 32"),
    ],
)
def test_a_misfit_is_told_by_both_ways_in(on, capability: tuple[int, int], changes: dict, said: str) -> None:
    """`held_bytes` and `prepare` name what does not fit and what to choose, in the same words."""
    on(*capability)
    assert refusals(evolve(LAYOUT, **changes)) == [f"attention backend 'hopper' {said}; {CURE}"] * 2


@pytest.mark.parametrize("version", [None, "3.5.1"])
def test_without_gluon_the_cure_is_told(on, monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Triton that is missing or too old stops before the kernel's module is imported."""
    on(9, 0)
    if version is None:
        monkeypatch.setitem(sys.modules, "triton", None)
    else:
        monkeypatch.setattr("triton.__version__", version)
    first, second = refusals(LAYOUT)
    assert first == second
    assert "'hopper' needs Triton 3.6 or later" in first
    assert f"install vflash[gpu], or {CURE}" in first


def test_the_sizes_are_the_kernels_own() -> None:
    """They are listed apart from the kernel so that a machine without Triton can read them."""
    assert tuple(dense.CONFIGS) == HEAD_DIMS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_auto_goes_by_the_layout(on, capability: tuple[int, int], head_dim: int, dtype: torch.dtype) -> None:
    """`hopper` exactly where it fits; otherwise cuDNN from 9.0 on and flash before; on a CPU `sdpa`."""
    on(*capability)
    layout = evolve(LAYOUT, head_dim=head_dim, dtype=dtype)
    fits = capability == (9, 0) and head_dim in (64, 128) and dtype is not torch.float32
    other = "sdpa-cudnn" if capability >= (9, 0) else "sdpa-flash"
    assert default_backend(layout) == ("hopper" if fits else other)
    assert (misfit(layout) is None) is admits(layout.device, dtype, head_dim) is fits
    assert default_backend(evolve(layout, device=CPU)) == "sdpa"


def test_auto_does_not_fall_back(on, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `hopper` fits but Triton is missing, `auto` stops as `hopper` does."""
    on(9, 0)
    monkeypatch.setitem(sys.modules, "triton", None)
    for ask in (DeviceDefaultAttention().held_bytes, DeviceDefaultAttention().prepare):
        with pytest.raises(UnsupportedError, match="'hopper' needs Triton"):
            ask(LAYOUT)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_self_test_passes_what_is_right(head_dim: int) -> None:
    """Arithmetic that rounds only its result."""
    check_dense(standing_in, CPU, torch.bfloat16, head_dim, 130, what="it", cure="choose another")


def forgets_the_last_key(q, k, v, out):
    return standing_in(q, k[:, :-1].repeat_interleave(2, 1)[:, : k.shape[1]], v, out)


def one_wrong_row(q, k, v, out):
    standing_in(q, k, v, out)[0, -1, 7] = v[0, -1, 7]
    return out


def not_a_number(q, k, v, out):
    standing_in(q, k, v, out)[0, 3, 5, 1] = float("nan")
    return out


def writes_nothing(q, k, v, out):
    return out


@pytest.mark.parametrize("wrong", [forgets_the_last_key, one_wrong_row, not_a_number, writes_nothing])
def test_the_self_test_names_the_error_of_what_is_wrong(wrong) -> None:
    """One wrong row of one head in two hundred is enough."""
    with pytest.raises(UnsupportedError, match=r"it failed .* on cpu in torch.bfloat16.* error \S+ exceeds 0.01; choo"):
        check_dense(wrong, CPU, torch.bfloat16, 64, 200, what="it", cure="choose another")


@pytest.mark.parametrize(("rows", "few"), [(1, 1), (128, 128), (300, 300), (383, 383), (384, 256), (38_222, 334)])
def test_the_self_test_has_the_remainder_of_the_real_length(rows: int, few: int) -> None:
    """Which keys a last block multiplies is compiled in."""
    assert few_rows(rows) == few


def test_each_device_dtype_size_and_remainder_is_tested_once(on, monkeypatch: pytest.MonkeyPatch) -> None:
    """By either way in; another length with the same remainder needs no second test."""
    on(9, 0)
    tested = []
    monkeypatch.setattr(
        "vflash_adapters.attention.hopper.adapter.check_dense", lambda *key, **_: tested.append(key[1:])
    )
    backend = HopperAttention()
    for rows in (300, 38_222, 300, 1230):
        backend.held_bytes(evolve(LAYOUT, rows=rows))
        backend.prepare(evolve(LAYOUT, rows=rows))
    backend.prepare(evolve(LAYOUT, rows=300, dtype=torch.float16))
    cuda, bf16 = LAYOUT.device, torch.bfloat16
    assert tested == [(cuda, bf16, 64, 300), (cuda, bf16, 64, 334), (cuda, torch.float16, 64, 300)]


def test_what_the_kernel_raises_is_told() -> None:
    """A compiler's or a driver's words, with the cure."""

    def fails(*qkv: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of resource: shared memory")

    with pytest.raises(
        UnsupportedError, match=r"5 rows of heads of 128: out of resource: shared memory; choose another"
    ):
        check_dense(fails, CPU, torch.float16, 128, 5, what="it", cure="choose another")


@pytest.mark.parametrize("in_place", [True, False])
def test_the_result_goes_over_q_where_asked(in_place: bool) -> None:
    """Views of a fused projection: the same values either way, and k and v stay as they are."""
    fused = torch.randn(70, 3, 3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    before = fused.clone()
    q, k, v = fused.unbind(1)
    kernel = partial(attend_rows, standing_in, in_place=in_place)
    attend = ExactAttentionFn(backend="hopper", layout=LAYOUT, kernel=kernel)
    found = attend(q, k, v, block=0, evaluation=0)
    expected = NaiveAttention().prepare(LAYOUT)(*before.unbind(1), block=0, evaluation=0)
    assert torch.equal(found, expected)
    assert (found.data_ptr() == q.data_ptr()) is in_place
    assert torch.equal(q, expected if in_place else before[:, 0])
    assert torch.equal(fused[:, 1:], before[:, 1:])


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("heads apart", lambda flat: flat.as_strided((8, 3, 64), (600, 72, 1))),
        ("heads first", lambda flat: flat[: 8 * 3 * 64].view(3, 8, 64).transpose(0, 1)),
        ("values apart", lambda flat: flat.as_strided((8, 3, 64), (384, 128, 2))),
        ("rows between 16 bytes", lambda flat: flat.as_strided((8, 3, 64), (196, 64, 1))),
        ("an address between 16 bytes", lambda flat: flat[4 : 4 + 8 * 3 * 64].view(8, 3, 64)),
    ],
)
@pytest.mark.parametrize("place", range(3))
def test_rows_that_the_copy_engine_cannot_read_are_refused(name: str, view, place: int) -> None:
    """An error that names the tensor, its strides and the cure; nothing runs."""
    qkv = [torch.zeros(8, 3, 64, dtype=torch.bfloat16) for _ in range(3)]
    qkv[place] = view(torch.zeros(6000, dtype=torch.bfloat16))
    with pytest.raises(ContractError, match=rf"but {'qkv'[place]} \(8, 3, 64\) has strides .* make it contiguous"):
        attend_rows(pytest.fail, *qkv, in_place=True)


def test_the_backend_is_chosen_by_name() -> None:
    """`hopper` beside torch's."""
    assert exact_backend("hopper") == HopperAttention()
