"""What every weight source promises, over every adapter: the same bits, the same names, the same refusals."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vflash_adapters.weights.buffered_source import BufferedWeights
from vflash_adapters.weights.byte_file import ReadMode, choose_file
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_adapters.weights.sidecar.merges import MergeChoice
from vflash_adapters.weights.sidecar.prepare import prepare
from vflash_adapters.weights.sidecar.source import SidecarWeights
from vflash_ports.errors import CheckpointError, ContractError
from vflash_ports.weights import WeightSource


def sidecar_of(path: Path, scratch: Path, merge: MergeChoice, read_workers: int) -> WeightSource:
    """A sidecar prepared from `path` as it is now; a path that cannot be prepared is left to the source to refuse."""
    sidecar = scratch / path.name
    if not sidecar.exists():
        scratch.mkdir(exist_ok=True)
        with suppress(CheckpointError):
            prepare(path, sidecar, merge=merge, block_bytes=8192)
    return SidecarWeights(path, sidecar, merge=merge, read_workers=read_workers)


SOURCES: dict[str, Callable[[Path, Path], WeightSource]] = {
    "mmap": lambda path, scratch: MmapWeights(path),
    "buffered-1": lambda path, scratch: BufferedWeights(path, read_workers=1),
    "buffered-4-cached": lambda path, scratch: BufferedWeights(path, open_file=partial(choose_file, mode=CACHED)),
    "buffered-8-direct": lambda path, scratch: BufferedWeights(
        path, read_workers=8, open_file=partial(choose_file, mode=DIRECT)
    ),
    "sidecar-numba": lambda path, scratch: sidecar_of(path, scratch, MergeChoice.NUMBA, 4),
    "sidecar-numpy": lambda path, scratch: sidecar_of(path, scratch, MergeChoice.NUMPY, 1),
}
CACHED, DIRECT = ReadMode.CACHED, ReadMode.DIRECT
EXACT_DTYPES = (
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
)  # fmt: skip


@pytest.fixture(params=SOURCES)
def open_source(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Path], WeightSource]:
    return lambda path: SOURCES[request.param](path, tmp_path / "scratch")


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    """Random bits of every dtype (NaN payloads, infinities and denormals included), odd sizes, scalars, empties."""
    generator = torch.Generator().manual_seed(7)
    made: dict[str, torch.Tensor] = {}
    for dtype in EXACT_DTYPES:
        high = 2 if dtype == torch.bool else 256
        raw = torch.randint(0, high, (9001 * 9 * dtype.itemsize,), generator=generator, dtype=torch.uint8)
        made[f"block.{dtype}"] = raw.view(dtype).view(9001, 9)
        made[f"scalar.{dtype}"] = raw[: dtype.itemsize].clone().view(dtype).view(())
        made[f"empty.{dtype}"] = torch.empty((3, 0, 2), dtype=dtype)
    made["重み.ü"] = torch.arange(5)
    return made


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def write_folder(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> Path:
    """A sharded component as the hub lays it out."""
    folder.mkdir()
    names = sorted(tensors)
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[number::shards]}
        save_file(part, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
    )
    return folder


def test_every_dtype_is_bit_equal(open_source, tensors, tmp_path: Path) -> None:
    """Names, dtypes, shapes and bits are those that were written, scalars and empty tensors included."""
    save_file(tensors, tmp_path / "w.safetensors")
    source = open_source(tmp_path / "w.safetensors")
    specs = source.specs()
    assert set(specs) == set(tensors)
    with source.open() as reader:
        for name, tensor in tensors.items():
            assert (specs[name].dtype, specs[name].shape) == (tensor.dtype, tuple(tensor.shape))
            assert specs[name].byte_count == tensor.numel() * tensor.itemsize
            read = reader.get_tensor(name)
            assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
            assert bits(read) == bits(tensor)


def test_read_into_fills_the_callers_tensor(open_source, tensors, tmp_path: Path) -> None:
    """`read_into` writes every bit into caller-owned storage and into nothing else."""
    save_file(tensors, tmp_path / "w.safetensors")
    with open_source(tmp_path / "w.safetensors").open() as reader:
        for name, tensor in tensors.items():
            arena = torch.full((tensor.numel() * tensor.itemsize + 32,), 0xAB, dtype=torch.uint8)
            out = arena[16 : arena.numel() - 16].view(tensor.dtype).view(tensor.shape)
            reader.read_into(name, out)
            assert bits(out) == bits(tensor)
            assert (arena[:16] == 0xAB).all()
            assert (arena[-16:] == 0xAB).all()


@pytest.mark.parametrize("shards", [1, 3])
def test_folder_and_index_give_the_same_tensors(open_source, tensors, tmp_path: Path, shards: int) -> None:
    """A folder, and the index inside it, are the same component."""
    folder = write_folder(tmp_path / "transformer", tensors, shards)
    for path in (folder, folder / "model.safetensors.index.json"):
        with open_source(path).open() as reader:
            for name, tensor in tensors.items():
                assert bits(reader.get_tensor(name)) == bits(tensor)


def test_folder_with_one_file_needs_no_index(open_source, tmp_path: Path) -> None:
    """A component folder may hold a single file and no index."""
    (tmp_path / "vae").mkdir()
    save_file({"a": torch.arange(3)}, tmp_path / "vae" / "diffusion_pytorch_model.safetensors")
    with open_source(tmp_path / "vae").open() as reader:
        assert reader.get_tensor("a").tolist() == [0, 1, 2]


def test_a_tensor_outlives_the_scope(open_source, tmp_path: Path) -> None:
    """A tensor kept beyond the scope stays valid, and writing to it changes neither the file nor a later read."""
    expected = torch.arange(100_000, dtype=torch.int32)
    save_file({"a": expected}, tmp_path / "w.safetensors")
    source = open_source(tmp_path / "w.safetensors")
    with source.open() as reader:
        kept = reader.get_tensor("a")
    del reader
    gc.collect()
    assert torch.equal(kept, expected)
    kept.zero_()
    with source.open() as reader:
        assert torch.equal(reader.get_tensor("a"), expected)


def test_unknown_name_is_refused(open_source, tmp_path: Path) -> None:
    """A name that the checkpoint lacks is an error that names it."""
    save_file({"a": torch.arange(3)}, tmp_path / "w.safetensors")
    with open_source(tmp_path / "w.safetensors").open() as reader:
        with pytest.raises(CheckpointError, match=r"blocks\.9"):
            reader.get_tensor("blocks.9")
        with pytest.raises(CheckpointError, match=r"blocks\.9"):
            reader.read_into("blocks.9", torch.empty(3))


@pytest.mark.parametrize(
    "out",
    [torch.empty(4), torch.empty(3, dtype=torch.int64), torch.empty(3, 2)[:, 0], torch.empty(3, device="meta")],
    ids=["shape", "dtype", "strided", "device"],
)
def test_read_into_refuses_a_tensor_that_does_not_fit(open_source, tmp_path: Path, out: torch.Tensor) -> None:
    """Shape, dtype, strides and device of the caller's tensor are checked before a byte is written."""
    save_file({"a": torch.arange(3.0)}, tmp_path / "w.safetensors")
    with open_source(tmp_path / "w.safetensors").open() as reader, pytest.raises(ContractError, match="a: "):
        reader.read_into("a", out)


def test_reading_after_the_scope_is_refused(open_source, tmp_path: Path) -> None:
    """A reader is dead when its scope ends."""
    save_file({"a": torch.arange(3.0)}, tmp_path / "w.safetensors")
    with open_source(tmp_path / "w.safetensors").open() as reader:
        pass
    with pytest.raises(ContractError, match="scope"):
        reader.get_tensor("a")


def test_a_replaced_file_is_noticed_at_open(open_source, tmp_path: Path) -> None:
    """Another file under the same name since `specs()`, of the same size and header, is an error, not its tensors."""
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.zeros(1000)}, path)
    source = open_source(path)
    source.specs()
    save_file({"a": torch.ones(1000)}, tmp_path / "other.safetensors")
    (tmp_path / "other.safetensors").rename(path)
    with pytest.raises(CheckpointError, match="changed"), source.open():
        pass


def test_a_file_changed_during_the_scope_is_noticed(open_source, tmp_path: Path) -> None:
    """Bytes overwritten in place while reading raise before the scope ends well."""
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.zeros(1000), "b": torch.zeros(1000)}, path)
    source = open_source(path)
    with pytest.raises(CheckpointError, match="changed"):
        read_while_overwriting(source, path)


def read_while_overwriting(source: WeightSource, path: Path) -> None:
    with source.open() as reader:
        reader.get_tensor("a")
        with path.open("r+b") as file:
            file.seek(-4, 2)
            file.write(b"\1\2\3\4")
        reader.get_tensor("b")


def test_a_missing_shard_is_named(open_source, tensors, tmp_path: Path) -> None:
    """An index that names an absent shard is refused before anything is read."""
    folder = write_folder(tmp_path / "transformer", tensors, 3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00003"):
        open_source(folder).specs()


def test_a_truncated_shard_is_refused(open_source, tensors, tmp_path: Path) -> None:
    """A shard one byte short is refused with both sizes."""
    folder = write_folder(tmp_path / "transformer", tensors, 2)
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        open_source(folder).specs()
