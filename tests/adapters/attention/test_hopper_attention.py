"""The dense kernel's backend without the device it is made for: what it refuses, what it tests, what `auto` chooses."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest
import torch
from attrs import evolve
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.runtime.jit import create_function_from_signature

from vflash_adapters.attention.device_default import DeviceDefaultAttention, default_backend, exact_backend
from vflash_adapters.attention.exact import ExactAttentionFn
from vflash_adapters.attention.hopper import dense, self_test, softmax_loop
from vflash_adapters.attention.hopper.adapter import CURE, HopperAttention, attend_rows
from vflash_adapters.attention.hopper.admission import HEAD_DIMS, admits, misfit
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
    """`dense.attend` in torch; k and v may have other rows than q."""
    for sequence in range(q.shape[0]):
        out[sequence] = NaiveAttention()._attend(q[sequence], k[sequence], v[sequence])
    return out


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch):
    """Makes every CUDA device one of this compute capability."""

    def capable(*capability: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    return capable


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Self-tests asked of the backend, as (device, dtype, head size, rows), instead of making them."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr("vflash_adapters.attention.hopper.adapter.check_dense", lambda *key, **_: asked.append(key[1:]))
    return asked


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


@pytest.mark.parametrize("version", [None, "3.5.1", "3.5rc2", "main"])
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


@pytest.mark.parametrize("version", ["3.6rc1", "3.6", "3.10.1+git1234", "4"])
def test_versions_are_read_as_far_as_they_go(
    on, monkeypatch: pytest.MonkeyPatch, passed: list[tuple[Any, ...]], version: str
) -> None:
    """Pre-releases and builds of one's own count by their first two numbers."""
    on(9, 0)
    monkeypatch.setattr("triton.__version__", version)
    assert HopperAttention().held_bytes(LAYOUT) == 0
    assert len(passed) == 1


def without_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton.experimental.gluon.nvidia.hopper", None)


def without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("async_load", "async_copy_global_to_shared"):
        monkeypatch.delattr(tma, name, raising=False)


@pytest.mark.parametrize("lacking", [without_a_module, without_a_name])
def test_a_later_triton_that_moved_a_name_is_told(on, monkeypatch: pytest.MonkeyPatch, lacking) -> None:
    """What the import of the kernel raises, with the cure."""
    on(9, 0)
    monkeypatch.setattr("triton.__version__", "9.1.0")
    monkeypatch.delitem(sys.modules, dense.__name__)
    lacking(monkeypatch)
    first, second = refusals(LAYOUT)
    assert first == second
    assert "'hopper' does not load with Triton 9.1.0 (" in first
    assert first.endswith(f"): install Triton 3.6, or {CURE}")


def test_the_cure_runs_in_float32_on_cuda() -> None:
    """Where none of torch's kernels that are named does."""
    assert "'naive'" in CURE
    found = NaiveAttention().prepare(evolve(LAYOUT, dtype=torch.float32))
    assert found.report().exact


def test_the_sizes_are_the_kernels_own() -> None:
    """They are listed apart from the kernel so that a machine without Triton can read them."""
    assert tuple(dense.CONFIGS) == HEAD_DIMS
    assert softmax_loop.KEYS.value == self_test.KEY_BLOCK


@pytest.mark.parametrize("slots", [{"k_slots": 1}, {"v_slots": 1}])
def test_a_block_in_flight_alone_is_no_configuration(slots: dict[str, int]) -> None:
    """The kernel would wait for itself."""
    with pytest.raises(ValueError, match=rf"'{next(iter(slots))}' must be >= 2"):
        evolve(dense.CONFIGS[64], **slots)


class Launches:
    """Stands in for the compiled kernel and keeps what Triton would compile a program for: types, alignment, sizes."""

    def __init__(self) -> None:
        kernel = dense._attend
        backend = CUDABackend(GPUTarget("cuda", 90, 32))
        self.specialised = create_function_from_signature(kernel.signature, kernel.params, backend)
        self.programs: list[str] = []

    def __getitem__(self, grid: tuple[int]) -> Launches:
        return self

    def __call__(self, *arguments: Any, num_warps: int, enable_fp_fusion: bool, **sizes: Any) -> None:
        self.programs.append(str(self.specialised(*arguments, **sizes)[1]))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_all_lengths_of_a_remainder_run_the_program_that_was_tested(
    head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sequences, as the self-test calls it, then one of 38,222 and one of 190,030 fused rows, whose size passes
    2^31 elements, beside q and over it: no first call compiles."""
    launches = Launches()
    monkeypatch.setattr(dense, "_attend", launches)
    properties = type("Properties", (), {"multi_processor_count": 132})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    sizes = [(2, few_rows(38_222), 66), (1, 38_222, 56 * 128 // head_dim), (1, 190_030, 56 * 128 // head_dim)]
    for batch, rows, heads in sizes:
        assert few_rows(rows) == few_rows(38_222)
        fused = torch.empty(batch, rows, 3, heads, head_dim, dtype=torch.bfloat16, device="meta")
        q, k, v = fused.unbind(2)
        dense.attend(q, k, v, q)
        dense.attend(q, k, v, torch.empty(q.shape, dtype=q.dtype, device="meta"))
    assert fused.numel() > 2**31
    assert len(launches.programs) == 6
    assert len(set(launches.programs)) == 1
    assert "i64" not in launches.programs[0]


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
    assert (misfit(layout.device, dtype, head_dim) is None) is admits(layout.device, dtype, head_dim) is fits
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


def test_the_self_test_calls_as_the_product_does() -> None:
    """Two sequences in thirds of fused projections: into poisoned memory of their own, then over q."""
    calls = []

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        calls.append((q.shape, {x.stride() for x in (q, k, v)}, out.stride(), bool(out.isnan().all()), out is q))
        return standing_in(q, k, v, out)

    check_dense(attend, CPU, torch.float16, 64, 40, what="it", cure="choose another")
    row = 66 * 64
    shape, fused = (2, 40, 66, 64), (40 * 3 * row, 3 * row, 64, 1)
    assert calls == [
        (shape, {fused}, (40 * row, row, 64, 1), True, False),
        (shape, {fused}, fused, False, True),
    ]


def test_the_self_test_goes_round_and_stays_small() -> None:
    """Each of an H200's 132 processors takes three tiles of queries, the main loop passes more blocks than there are
    places for, and inputs, result and comparison stay under 0.1 GB at the most rows and values."""
    for head_dim, config in dense.CONFIGS.items():
        tiles = -(-few_rows(128_000) // (config.groups * softmax_loop.ROWS.value))
        assert self_test.SEQUENCES * self_test.HEADS * tiles >= 3 * 132
        assert few_rows(128_000) // self_test.KEY_BLOCK > max(config.k_slots, config.v_slots)
        values = self_test.SEQUENCES * self_test.HEADS * few_rows(128_127) * head_dim
        assert values * (3 * 2 + 2 + 1) < 0.1e9


def padded(x: torch.Tensor, rows: int) -> torch.Tensor:
    """With rows of zeros behind, as the copy engine reads them."""
    return torch.cat([x, x.new_zeros(x.shape[0], rows, *x.shape[2:])], dim=1)


def counts_a_key_of_padding(q, k, v, out):
    return standing_in(q, padded(k, 1), padded(v, 1), out)


def masks_nothing(q, k, v, out):
    rest = -k.shape[1] % 16
    return standing_in(q, padded(k, rest), padded(v, rest), out)


def forgets_the_last_key(q, k, v, out):
    return standing_in(q, k[:, :-1], v[:, :-1], out)


def forgets_a_block_in_the_middle(q, k, v, out):
    kept = torch.cat([torch.arange(256), torch.arange(384, k.shape[1])])
    return standing_in(q, k[:, kept], v[:, kept], out)


def one_wrong_row(q, k, v, out):
    standing_in(q, k, v, out)[0, -1, 7] = v[0, -1, 7]
    return out


def reads_the_first_sequence_twice(q, k, v, out):
    return standing_in(q, k[:1].expand_as(k), v[:1].expand_as(v), out)


def not_a_number(q, k, v, out):
    standing_in(q, k, v, out)[0, 3, 5, 1] = float("nan")
    return out


def leaves_a_row(q, k, v, out):
    last = out[:, -1].clone()
    standing_in(q, k, v, out)[:, -1] = last
    return out


def writes_nothing(q, k, v, out):
    return out


@pytest.mark.parametrize(
    ("wrong", "rows"),
    [
        (counts_a_key_of_padding, 517),
        (counts_a_key_of_padding, 639),
        (masks_nothing, 517),
        (forgets_the_last_key, 639),
        (forgets_a_block_in_the_middle, 517),
        (one_wrong_row, 200),
        (reads_the_first_sequence_twice, 11),
        (not_a_number, 11),
        (leaves_a_row, 11),
        (writes_nothing, 11),
    ],
)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_self_test_names_the_error_of_what_is_wrong(wrong, rows: int, head_dim: int) -> None:
    """One key of padding at the most rows, and one wrong row of one head, are enough."""
    with pytest.raises(UnsupportedError, match=r"it failed .* on cpu in torch.bfloat16.* error \S+ exceeds 0.01; choo"):
        check_dense(wrong, CPU, torch.bfloat16, head_dim, rows, what="it", cure="choose another")


def test_the_self_test_wants_the_same_bits_over_q() -> None:
    """A result that is within rounding, but another one over q than beside it, is refused."""

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        over = out is q
        standing_in(q, k, v, out)
        out[1, 2, 3, 4] *= 1.01 if over else 1.0
        return out

    with pytest.raises(UnsupportedError, match=r"it failed .*11 rows.*: over q .* another result .*; choose another"):
        check_dense(wrong, CPU, torch.bfloat16, 64, 11, what="it", cure="choose another")


@pytest.mark.parametrize(
    ("rows", "few"), [(1, 1), (128, 128), (300, 300), (639, 639), (640, 512), (38_222, 590), (1797, 517)]
)
def test_the_self_test_has_the_remainder_of_the_real_length(rows: int, few: int) -> None:
    """Which keys a last block multiplies is compiled in."""
    assert few_rows(rows) == few


def test_each_device_dtype_size_and_remainder_is_tested_once(on, passed: list[tuple[Any, ...]]) -> None:
    """By either way in; another length with the same remainder needs no second test."""
    on(9, 0)
    backend = HopperAttention()
    for rows in (300, 38_222, 300, 1230):
        backend.held_bytes(evolve(LAYOUT, rows=rows))
        backend.prepare(evolve(LAYOUT, rows=rows))
    backend.prepare(evolve(LAYOUT, rows=300, dtype=torch.float16))
    cuda, bf16 = LAYOUT.device, torch.bfloat16
    assert passed == [(cuda, bf16, 64, 300), (cuda, bf16, 64, 590), (cuda, torch.float16, 64, 300)]


def test_what_the_kernel_raises_is_told() -> None:
    """A compiler's or a driver's words, with the cure."""

    def fails(*qkv: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of resource: shared memory")

    with pytest.raises(
        UnsupportedError, match=r"5 rows of heads of 128: out of resource: shared memory; choose another"
    ):
        check_dense(fails, CPU, torch.float16, 128, 5, what="it", cure="choose another")


def test_memory_that_runs_out_is_no_fault_of_the_kernel() -> None:
    """Torch's own error passes through the self-test as it is."""

    def full(*qkv: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory"):
        check_dense(full, CPU, torch.float16, 64, 5, what="it", cure="choose another")


def test_the_result_goes_over_q() -> None:
    """Views of a fused projection: k and v stay as they are."""
    fused = torch.randn(70, 3, 3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    before = fused.clone()
    q, k, v = fused.unbind(1)
    attend = ExactAttentionFn(backend="hopper", layout=LAYOUT, kernel=partial(attend_rows, standing_in))
    found = attend(q, k, v, block=0, evaluation=0)
    expected = NaiveAttention().prepare(LAYOUT)(*before.unbind(1), block=0, evaluation=0)
    assert found.data_ptr() == q.data_ptr()
    assert torch.equal(found, expected)
    assert torch.equal(q, expected)
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
        attend_rows(pytest.fail, *qkv)


def test_the_backend_is_chosen_by_name() -> None:
    """`hopper` beside torch's."""
    assert exact_backend("hopper") == HopperAttention()
