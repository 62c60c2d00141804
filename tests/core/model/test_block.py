"""One block: which tensors are alive when, and that working in parts of the rows changes nothing."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch

from vflash.model.block import BlockRun, BlockWeights, run_block
from vflash.model.residual import AdaptedLinear, Part, apart
from vflash_adapters.attention.naive import NaiveAttention
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_ports.attention import AttentionLayout
from vflash_ports.linear import ActivationFormat, PackedLinear
from vflash_ports.observer import SilentObserver

C, H, D, F, S = 32, 2, 16, 48, 300


class Watched:
    """A linear that remembers what it was given and what it returned, without keeping either alive."""

    consumes = ActivationFormat.DENSE

    def __init__(self, weight: torch.Tensor, seen: list[weakref.ref[torch.Tensor]], before: Callable[[], None]) -> None:
        self._bound = Bf16Linear().bind(PackedLinear(weight=weight))
        self._seen, self._before = seen, before
        self.rows: list[int] = []

    def __call__(self, values: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        self._before()
        result = self._bound(values, out=out)
        self.rows.append(values.shape[0])
        self._seen += [weakref.ref(values), weakref.ref(result)]
        return result


def run(chunk_rows: int, rows: int = S) -> BlockRun:
    layout = AttentionLayout(
        segments=(),
        rows=rows,
        heads=H,
        head_dim=D,
        blocks=1,
        evaluations=1,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    angle = torch.rand(rows, 6).repeat(1, 2)
    return BlockRun(
        kernels=TorchBlockKernels(),
        attend=NaiveAttention().prepare(layout),
        observer=SilentObserver(),
        roles=torch.arange(rows) % 3,
        cos=angle.cos(),
        sin=angle.sin(),
        heads=H,
        norm_eps=1e-5,
        qk_norm_eps=1e-5,
        chunk_rows=chunk_rows,
    )


def weights(seen: list[weakref.ref[torch.Tensor]], at_ffn: Callable[[], None] = lambda: None) -> BlockWeights:
    torch.manual_seed(0)

    def linear(outer: int, inner: int, before: Callable[[], None] = lambda: None) -> Watched:
        return Watched(torch.randn(outer, inner) * inner**-0.5, seen, before)

    return BlockWeights(
        norm1=torch.ones(C),
        norm2=torch.ones(C),
        norm_q=torch.ones(D),
        norm_k=torch.ones(D),
        qkv=linear(3 * H * D, C),
        out=linear(C, H * D),
        ffn_in=linear(2 * F, C, at_ffn),
        ffn_out=linear(C, F),
    )


def test_attention_tensors_are_dead_before_the_ffn() -> None:
    """The normalised input, the attention output, QKV and the projected update hold no memory when the FFN begins."""
    seen: list[weakref.ref[torch.Tensor]] = []
    alive_at_ffn: list[int] = []
    bound = weights(seen, lambda: alive_at_ffn.append(sum(ref() is not None for ref in seen)))
    run_block(bound, run(S), torch.randn(S, C), torch.randn(3, 6, C), block=0, evaluation=0)
    assert len(seen) == 8
    assert alive_at_ffn == [0]


def test_each_part_of_the_ffn_dies_before_the_next() -> None:
    """Of the FFN only one part of the rows is ever held."""
    seen: list[weakref.ref[torch.Tensor]] = []
    alive_at_ffn: list[int] = []
    bound = weights(seen, lambda: alive_at_ffn.append(sum(ref() is not None for ref in seen)))
    run_block(bound, run(128), torch.randn(S, C), torch.randn(3, 6, C), block=0, evaluation=0)
    assert alive_at_ffn == [0, 0, 0]


@pytest.mark.parametrize("chunk_rows", [1, 100, 128, 150, 299, 1000])
def test_parts_change_no_value(chunk_rows: int) -> None:
    """The rows of QKV and FFN are independent; in float32 on a CPU the result is the whole one within rounding."""
    x, table = torch.randn(S, C), torch.randn(3, 6, C)
    torch.manual_seed(1)
    whole = run_block(weights([]), run(S), x.clone(), table, block=0, evaluation=0)
    torch.manual_seed(1)
    parts = run_block(weights([]), run(chunk_rows), x.clone(), table, block=0, evaluation=0)
    assert torch.allclose(parts, whole, rtol=1e-5, atol=1e-5)


def test_parts_cover_every_row_once_and_evenly() -> None:
    """Equal parts in whole tiles of 128 rows, so that no short remainder wastes a GEMM."""
    for rows, limit, sizes in (
        (38000, 16384, [12672, 12672, 12656]),
        (38000, 28672, [19072, 18928]),
        (300, 1000, [300]),
        (300, 128, [128, 128, 44]),
        (16384, 16384, [16384]),
        (1, 16384, [1]),
    ):
        parts = list(run(limit, rows=rows).chunks())
        assert [part.stop - part.start for part in parts] == sizes
        assert [part.start for part in parts] == [sum(sizes[:i]) for i in range(len(sizes))]


def test_the_result_is_in_the_storage_of_x() -> None:
    """The residual stream exists once."""
    x = torch.randn(S, C)
    assert run_block(weights([]), run(S), x, torch.randn(3, 6, C), block=0, evaluation=0).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_of_the_ffn_input_is_merged_in_the_activation(dtype: torch.dtype) -> None:
    """Its residual reaches SwiGLU unmerged; bit by bit what adding it first gives."""
    torch.manual_seed(2)
    base = Bf16Linear().bind(PackedLinear(weight=(torch.randn(2 * F, C) * C**-0.5).to(dtype)))
    part = Part(rank_start=0, rank_stop=4, column_start=0, column_stop=2 * F)
    up, down = torch.randn(2 * F, 4).to(dtype), torch.randn(4, C).to(dtype)
    adapted = AdaptedLinear(base=base, down=down, ups=(up,), scales=(torch.tensor(0.3),), parts=(part,))
    values, kernels = torch.randn(37, C).to(dtype), TorchBlockKernels()
    made = apart(adapted, values)
    assert made.residual is not None
    fused = kernels.swiglu(made.values, emit=ActivationFormat.DENSE, residual=made.residual, residual_scale=made.scale)
    added = kernels.swiglu(adapted(values), emit=ActivationFormat.DENSE)
    assert isinstance(fused, torch.Tensor)
    assert isinstance(added, torch.Tensor)
    assert torch.equal(fused, added)
