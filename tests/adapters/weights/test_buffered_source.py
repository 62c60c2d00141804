"""The buffered source: who owns the memory, what a failure leaves behind, and how a file is read."""

from __future__ import annotations

import gc
import itertools
import json
import os
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from vflash_adapters.weights import buffered_source
from vflash_adapters.weights.buffered_source import BufferedWeights
from vflash_adapters.weights.byte_file import (
    ALIGNMENT,
    ByteFile,
    Bytes,
    CachedFile,
    DirectFile,
    ReadMode,
    aligned_bytes,
    choose_file,
)
from vflash_adapters.weights.page_cache import resident_fraction
from vflash_adapters.weights.read_workers import ReadWorkers
from vflash_ports.errors import CheckpointError, ContractError


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def evict(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """40 MiB in three tensors whose offsets are aligned to nothing in particular."""
    generator = torch.Generator().manual_seed(1)
    sizes = {"a": 3_000_001, "b": 17_000_003, "c": 21_943_040}
    tensors = {n: torch.randint(0, 256, (s,), generator=generator, dtype=torch.uint8) for n, s in sizes.items()}
    save_file(tensors, tmp_path / "large.safetensors")
    return tmp_path / "large.safetensors"


def test_a_kept_tensor_keeps_its_whole_shard(large: Path) -> None:
    """Views share the shard's one buffer: a tensor kept after the scope holds it, and its death frees it."""
    before = anonymous_bytes()
    with BufferedWeights(large).open() as reader:
        kept = reader.get_tensor("a")
        other = reader.get_tensor("c")
        assert kept.untyped_storage().data_ptr() <= other.data_ptr()
    size = large.stat().st_size
    del other
    gc.collect()
    assert anonymous_bytes() - before > 0.9 * size
    del kept, reader
    gc.collect()
    assert anonymous_bytes() - before < 0.3 * size


def test_read_into_owns_no_shard(large: Path) -> None:
    """Filling a caller's tensor allocates no buffer of the shard's size."""
    out = torch.zeros(17_000_003, dtype=torch.uint8)
    before = anonymous_bytes()
    with BufferedWeights(large, open_file=partial(choose_file, mode=ReadMode.CACHED)).open() as reader:
        reader.read_into("b", out)
        assert anonymous_bytes() - before < 8 * 2**20


def test_shards_are_let_go_one_after_another(tmp_path: Path) -> None:
    """A pass over many shards in order holds two of them, not all."""
    for number in range(6):
        save_file({f"t{number}": torch.ones(2**22)}, tmp_path / f"m-{number}.safetensors")
    index = {"weight_map": {f"t{number}": f"m-{number}.safetensors" for number in range(6)}}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    before = anonymous_bytes()
    with BufferedWeights(tmp_path).open() as reader:
        for number in range(6):
            assert reader.get_tensor(f"t{number}").sum() == 2**22
            assert anonymous_bytes() - before < 3.5 * 2**24


class FailingFile:
    """Reads like the page cache until the third request."""

    mode = ReadMode.CACHED
    requests = 0

    def __init__(self, descriptor: int, path: Path) -> None:
        self._file = CachedFile(descriptor, path)

    def read_into(self, offset: int, out: Bytes, scratch: Bytes) -> None:
        FailingFile.requests += 1
        if FailingFile.requests == 3:
            raise OSError(5, "the disk gave up")
        self._file.read_into(offset, out, scratch)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_failed_read_releases_everything(large: Path, workers: int) -> None:
    """After a failure no descriptor, thread or buffer of the reader is left."""
    FailingFile.requests = 0
    descriptors, threads, before = open_descriptors(), threading.active_count(), anonymous_bytes()
    with (
        pytest.raises(OSError, match="gave up"),
        BufferedWeights(large, read_workers=workers, open_file=FailingFile).open() as reader,
    ):
        reader.get_tensor("c")
    del reader
    gc.collect()
    assert open_descriptors() == descriptors
    assert threading.active_count() == threads
    assert anonymous_bytes() - before < 16 * 2**20
    assert FailingFile.requests < 8


@pytest.mark.parametrize("mode", list(ReadMode))
def test_a_file_cut_while_reading_is_an_error(large: Path, mode: ReadMode) -> None:
    """Where a mapping would crash the process, a short read raises."""
    descriptor = os.open(large, os.O_RDONLY)
    try:
        file = choose_file(descriptor, large, mode)
        size = large.stat().st_size
        out, scratch = np.zeros(2**20, dtype=np.uint8), aligned_bytes(2**20 + 2 * ALIGNMENT)
        os.truncate(large, size - 2**19 - 7)
        with pytest.raises(CheckpointError, match="cut"):
            file.read_into(size - 2**20, out, scratch)
    finally:
        os.close(descriptor)


@settings(deadline=None, max_examples=60)
@given(
    offset=st.integers(0, 50_000),
    length=st.integers(0, 40_000),
    shift=st.integers(0, ALIGNMENT),
    mode=st.sampled_from(list(ReadMode)),
)
def test_any_range_into_any_address(
    tmp_path_factory: pytest.TempPathFactory, offset: int, length: int, shift: int, mode: ReadMode
) -> None:
    """Both modes read exactly the asked bytes, whatever the offset, the length and the memory's alignment."""
    path = tmp_path_factory.getbasetemp() / "range.bin"
    if not path.exists():
        path.write_bytes(np.random.default_rng(3).bytes(90_001))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        arena = aligned_bytes(length + 2 * ALIGNMENT)
        out = arena[shift : shift + length]
        choose_file(descriptor, path, mode).read_into(offset, out, aligned_bytes(length + 2 * ALIGNMENT))
        assert out.tobytes() == path.read_bytes()[offset : offset + length]
        assert not arena[:shift].any()
        assert not arena[shift + length :].any()
    finally:
        os.close(descriptor)


def test_mode_follows_the_page_cache(large: Path) -> None:
    """An evicted file is read directly, a cached one through the cache, and the reader says which."""
    evict(large)
    descriptor = os.open(large, os.O_RDONLY)
    fraction = resident_fraction(descriptor, large.stat().st_size)
    os.close(descriptor)
    assert fraction is not None
    assert fraction < 0.5
    with BufferedWeights(large).open() as reader:
        reader.get_tensor("a")
        assert reader.read_modes() == {"large.safetensors": "direct"}
    large.read_bytes()
    with BufferedWeights(large).open() as reader:
        reader.get_tensor("a")
        assert reader.read_modes() == {"large.safetensors": "cached"}


def test_a_file_system_without_direct_reads_is_read_through_the_cache(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where O_DIRECT is refused (tmpfs, some overlays) the bytes come through the cache, and the mode says so."""
    real = os.open

    def refuse(path: object, flags: int, *rest: object) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *rest)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "open", refuse)
    descriptor = real(large, os.O_RDONLY)
    file: ByteFile = DirectFile(descriptor, large)
    out = np.zeros(1000, dtype=np.uint8)
    file.read_into(5000, out, aligned_bytes(3 * ALIGNMENT))
    os.close(descriptor)
    assert file.mode is ReadMode.CACHED
    assert out.tobytes() == large.read_bytes()[5000:6000]


@pytest.mark.parametrize("count", [0, 3, 16, -1, True, 2.5])
def test_reader_counts_are_bounded(large: Path, count: int) -> None:
    """1, 2, 4 or 8 readers; anything else dies before a file is opened."""
    with pytest.raises(ContractError, match="read_workers"):
        BufferedWeights(large, read_workers=count)


@settings(deadline=None, max_examples=30)
@given(begin=st.integers(0, 5000), length=st.integers(1, 9000))
def test_requests_tile_the_range(begin: int, length: int) -> None:
    """Requests follow each other without gap, none is larger than the bound, inner cuts are at aligned offsets."""
    size = buffered_source.REQUEST_BYTES
    try:
        buffered_source.REQUEST_BYTES = 1024
        pieces = buffered_source._pieces(begin, length)
    finally:
        buffered_source.REQUEST_BYTES = size
    assert pieces[0].start == 0
    assert pieces[-1].stop == length
    assert all(left.stop == right.start for left, right in itertools.pairwise(pieces))
    assert all(0 < piece.stop - piece.start <= 1024 for piece in pieces)
    assert all((begin + piece.start) % 1024 == 0 for piece in pieces[1:])


def test_workers_stop_at_the_first_failure() -> None:
    """Jobs not yet begun when one fails are dropped, and its exception is the one raised."""
    workers = ReadWorkers(2)
    done: list[int] = []

    def work(slot: int, job: int) -> None:
        if job == 5:
            raise ValueError("job 5")
        done.append(job)

    with pytest.raises(ValueError, match="job 5"):
        workers.run(range(100_000), work)
    workers.close()
    assert len(done) < 100_000


def test_two_threads_may_share_a_reader(large: Path) -> None:
    """Concurrent `read_into` calls do not mix their bytes."""
    expected = {name: tensor.clone() for name, tensor in _load(large).items()}
    outs = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    with BufferedWeights(large, open_file=partial(choose_file, mode=ReadMode.DIRECT)).open() as reader:
        threads = [threading.Thread(target=reader.read_into, args=(name, out)) for name, out in outs.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(torch.equal(outs[name], expected[name]) for name in expected)


def _load(path: Path) -> dict[str, torch.Tensor]:
    with BufferedWeights(path, read_workers=1).open() as reader:
        return {name: reader.get_tensor(name) for name in ("a", "b", "c")}
