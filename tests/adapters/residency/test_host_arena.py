"""The slabs of pinned memory: alignment, no overlap, bounded waste, and memory that goes back to the system."""

from __future__ import annotations

import gc
import itertools

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash_adapters.residency.arena import ALIGNMENT, HostArena, aligned
from vflash_ports.errors import ContractError
from vflash_ports.weights import TensorSpec


def byte_spec(name: str, count: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=torch.uint8, shape=(count,), byte_count=count)


@given(sizes=st.lists(st.integers(1, 4096), min_size=1, max_size=40), slab=st.sampled_from([4096, 8192, 65536]))
@settings(deadline=None, max_examples=60)
def test_tensors_are_aligned_and_never_overlap(sizes: list[int], slab: int) -> None:
    """Each tensor starts on 256 bytes, lies whole in one slab and shares no byte with another."""
    arena = HostArena(sum(map(aligned, sizes)), pinned=False, slab_bytes=slab)
    placed = [arena.place([byte_spec("t", size)])["t"] for size in sizes]
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in placed)
    assert all(start % ALIGNMENT == 0 for start, _ in spans)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert arena.payload_bytes == sum(sizes)
    assert arena.allocated_bytes >= sum(map(aligned, sizes))


def test_small_tensors_fill_the_ends_of_slabs() -> None:
    """Blocks of the released proportions (4, 3, 2 and 1 units) waste under 4 % of slabs that hold 27.8 units."""
    unit = 73_728  # a thousandth of the released model's
    blocks = [[3 * unit, unit, 4 * unit, 2 * unit] for _ in range(50)]
    payload = sum(map(sum, blocks))
    arena = HostArena(payload, pinned=False, slab_bytes=2**21)
    for block in blocks:
        arena.place([byte_spec(str(number), size) for number, size in enumerate(block)])
    assert arena.allocated_bytes / payload < 1.04


def test_a_tensor_outlives_the_arena_and_then_gives_its_memory_back() -> None:
    """Views own their slab; when the last one dies the process is as small as before."""
    process, size = psutil.Process(), 64 * 2**20
    gc.collect()
    before = process.memory_info().rss
    arena = HostArena(size, pinned=False, slab_bytes=2**26)
    tensor = arena.place([byte_spec("t", size)])["t"]
    tensor.fill_(7)
    arena.close()
    arena.close()
    assert int(tensor[-1]) == 7
    assert process.memory_info().rss - before > 0.9 * size
    del tensor
    gc.collect()
    assert process.memory_info().rss - before < 0.1 * size


def test_what_does_not_fit_is_refused_by_name() -> None:
    """A tensor larger than a slab, and a slab that is no power of two."""
    with pytest.raises(ContractError, match=r"qkv of 4096 bytes does not fit a slab of 2048"):
        HostArena(4096, pinned=False, slab_bytes=2048).place([byte_spec("qkv", 4096)])
    for slab in (3000, 128):
        with pytest.raises(ContractError, match="power of two"):
            HostArena(4096, pinned=False, slab_bytes=slab)
