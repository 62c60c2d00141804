"""The compressed sidecar: equal bits, and an error for everything that is not exactly what was prepared."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from vflash_adapters.manifest import seal
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_adapters.weights.sidecar.blocks import MIN_CODED_TENSOR, plan_blocks
from vflash_adapters.weights.sidecar.codec import BlockDecoder, BlockEncoder, digest
from vflash_adapters.weights.sidecar.inspect import inspect
from vflash_adapters.weights.sidecar.merges import MergeChoice, make_merge
from vflash_adapters.weights.sidecar.pairs import pack_pairs, read_window, unpack_pairs
from vflash_adapters.weights.sidecar.planes import PLANES_BY_DTYPE, Planes, coded_bytes, split
from vflash_adapters.weights.sidecar.prepare import prepare
from vflash_adapters.weights.sidecar.sidecar_manifest import KIND
from vflash_adapters.weights.sidecar.source import SidecarWeights
from vflash_adapters.weights.sidecar.verify import verify
from vflash_ports.errors import CheckpointError, ContractError

NUMPY = MergeChoice.NUMPY


def normal(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 0.02
    if dtype.is_floating_point and dtype.itemsize == 1:
        return (values * 1000).to(dtype)
    return values.to(dtype)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Weights of the coded dtypes, one that does not compress, one small, one empty."""
    noise = torch.randint(0, 256, (100_000,), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    save_file(
        {
            "bf16": normal(150_001, torch.bfloat16),
            "f16": normal(40_000, torch.float16),
            "f32": normal(30_001, torch.float32),
            "fp8": normal(90_001, torch.float8_e4m3fn),
            "noise": noise[:80_000].view(torch.bfloat16).clone(),
            "int": torch.arange(50_000),
            "small": normal(100, torch.bfloat16),
            "empty": torch.empty(0, 3),
        },
        tmp_path / "w.safetensors",
    )
    return tmp_path / "w.safetensors"


def read_all(source: Path, sidecar: Path, workers: int = 1, merge: MergeChoice = NUMPY) -> dict[str, bytes]:
    weights = SidecarWeights(source, sidecar, read_workers=workers, merge=merge)
    with weights.open() as reader:
        return {name: bits(reader.get_tensor(name)) for name in weights.specs()}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


# --- planes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", list(MergeChoice))
@pytest.mark.parametrize("planes", list(Planes))
def test_every_word_survives_the_planes(planes: Planes, merge: MergeChoice) -> None:
    """All 65,536 BF16 and F16 words, all FP8 bytes, and F32 words of every exponent come back bit for bit."""
    item = {Planes.F32: 4, Planes.FP8: 1}.get(planes, 2)
    words = np.arange(65_536, dtype=np.uint32)
    plain = {1: words.astype(np.uint8), 2: words.astype(np.uint16), 4: (words << 16) | words}[item].view(np.uint8)
    pair = split(planes, plain)
    assert len(pair.coded) == coded_bytes(planes, len(plain))
    assert len(pair.coded) + len(pair.raw) == len(plain)
    out = np.zeros(len(plain) + 1, dtype=np.uint8)[1:]  # misaligned on purpose
    make_merge(merge).merge(planes, pair.coded, pair.raw, out)
    assert np.array_equal(out, plain)


@settings(deadline=None, max_examples=60)
@given(planes=st.sampled_from(Planes), data=st.binary(max_size=700))
def test_both_merges_give_equal_bytes(planes: Planes, data: bytes) -> None:
    """numba and numpy agree on any bytes of any length, odd FP8 lengths included."""
    item = {Planes.F32: 4, Planes.FP8: 1}.get(planes, 2)
    plain = np.frombuffer(data[: len(data) // item * item], dtype=np.uint8)
    pair = split(planes, plain)
    for merge in MergeChoice:
        out = np.zeros(len(plain), dtype=np.uint8)
        make_merge(merge).merge(planes, pair.coded, pair.raw, out)
        assert out.tobytes() == plain.tobytes()


@settings(deadline=None, max_examples=80)
@given(
    data=st.lists(st.integers(0, 255), max_size=400),
    shift=st.integers(0, 240),
    narrow=st.booleans(),
    merge=st.sampled_from(MergeChoice),
)
def test_pairs_give_every_exponent_back(data: list[int], shift: int, narrow: bool, merge: MergeChoice) -> None:
    """Any exponents, odd counts, all or none within a window: the words come back, as does the window's own form."""
    exponents = np.array([shift + value % 16 if narrow else value for value in data], dtype=np.uint8)
    pairs, window = pack_pairs(exponents)
    kept = read_window(window.to_bytes(), len(exponents))
    assert kept is not None
    assert not narrow or not len(window.positions)
    assert np.array_equal(unpack_pairs(pairs, kept, len(exponents)), exponents)
    raw = np.arange(len(exponents), dtype=np.uint8)
    whole, halves = (np.zeros(2 * len(raw) + 1, dtype=np.uint8)[1:] for _ in range(2))
    make_merge(merge).merge(Planes.BF16, exponents, raw, whole)
    make_merge(merge).merge_pairs(pairs, kept, raw, halves)
    assert np.array_equal(whole, halves)


@pytest.mark.parametrize(
    "content",
    [b"", b"\1\2", b"\1" + b"\5\0\0\0" * 2 + b"ab", b"\1" + b"\x64\0\0\0" + b"a", b"\1" + b"\2\0\0\0\1\0\0\0ab"],
)
def test_a_window_that_fits_no_block_is_none(content: bytes) -> None:
    """Cut, repeated, out of range and falling positions."""
    assert read_window(np.frombuffer(content, dtype=np.uint8), 100) is None


def test_blocks_without_a_common_exponent_are_coded_whole(tmp_path: Path) -> None:
    """Half zeros, half weights: no window holds both, so exponents are coded byte by byte, and still shrink."""
    values = normal(200_000, torch.bfloat16)
    values[::2] = 0
    save_file({"sparse": values, "dense": normal(200_000, torch.bfloat16)}, tmp_path / "w.safetensors")
    prepare(tmp_path / "w.safetensors", tmp_path / "s", merge=NUMPY)
    rows = json.loads((tmp_path / "s" / "manifest.json").read_bytes())["body"]["shards"][0]["rows"]
    assert sorted(row[1] > 0 for row in rows) == [False, True]
    for merge in MergeChoice:
        assert read_all(tmp_path / "w.safetensors", tmp_path / "s", 1, merge)["sparse"] == bits(values)


def test_exponent_planes_compress_and_noise_is_stored_plain(source: Path, tmp_path: Path) -> None:
    """Trained-like BF16 stays below 0.67 and FP8 below 0.84 of their size; noise costs nothing extra."""
    prepare(source, tmp_path / "s", merge=NUMPY)
    dtypes = inspect(tmp_path / "s")["components"]["."]["dtypes"]
    assert dtypes["F8_E4M3"]["ratio"] < 0.84
    assert dtypes["F32"]["ratio"] < 0.84
    assert dtypes["I64"]["ratio"] == 1.0
    bf16 = dtypes["BF16"]
    noise_and_small = 80_000 + 200
    assert bf16["stored_bytes"] - noise_and_small < 0.67 * (bf16["plain_bytes"] - noise_and_small)


# --- round trips -------------------------------------------------------------------------------------------------

CODED = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]


@settings(deadline=None, max_examples=40)
@given(
    shapes=st.lists(
        st.tuples(
            st.sampled_from([*CODED, torch.int8, torch.float64]),
            st.one_of(st.sampled_from([0, 1, 16_384, 32_768, 65_537]), st.integers(0, 90_000)),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=4,
    ),
    block_bytes=st.sampled_from([4096, 8192, 12_288, 65_536, 2**20]),
    workers=st.sampled_from([1, 2, 4, 8]),
    merge=st.sampled_from(MergeChoice),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: list[tuple[torch.dtype, int, int]],
    block_bytes: int,
    workers: int,
    merge: MergeChoice,
) -> None:
    """Any mix of dtypes, sizes, block sizes and worker counts reads back bit-equal, and verifies."""
    folder = tmp_path_factory.mktemp("round")
    tensors = {f"t{i}.é": normal(n, dtype, seed).reshape(-1, 1) for i, (dtype, n, seed) in enumerate(shapes)}
    save_file(tensors, folder / "w.safetensors")
    prepare(folder / "w.safetensors", folder / "s", block_bytes=block_bytes, workers=workers, merge=merge)
    read = read_all(folder / "w.safetensors", folder / "s", workers, merge)
    assert read == {name: bits(tensor) for name, tensor in tensors.items()}
    report = verify(folder / "w.safetensors", folder / "s", workers=workers, merge=merge)
    assert report.byte_count == (folder / "w.safetensors").stat().st_size


def test_what_the_manifest_says_of_its_writer_is_known_before_any_work(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the project that was never installed has no version: nothing is read or written for it."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("vflash_adapters.weights.sidecar.prepare.version", missing)
    monkeypatch.setattr("vflash_adapters.weights.sidecar.prepare.new_directory", pytest.fail)
    with pytest.raises(PackageNotFoundError):
        prepare(source, tmp_path / "sidecar")
    assert not (tmp_path / "sidecar").exists()


def test_worker_count_never_changes_bytes(source: Path, tmp_path: Path) -> None:
    """1, 2, 4 and 8 workers write the same data file and the same manifest."""
    written = []
    for workers in (1, 2, 4, 8):
        prepare(source, tmp_path / f"s{workers}", workers=workers, merge=NUMPY, block_bytes=8192)
        written.append({path.name: path.read_bytes() for path in (tmp_path / f"s{workers}").iterdir()})
    assert all(files == written[0] for files in written)


def test_blocks_tile_the_payload(source: Path) -> None:
    """Blocks follow each other, never cross a tensor's end, and only large tensors of known dtypes are coded."""
    from vflash_adapters.weights.checkpoint import read_shard

    header = read_shard(source).header
    blocks = plan_blocks(header, 8192)
    assert blocks[0].begin == header.data_start
    assert blocks[-1].begin + blocks[-1].length == header.file_bytes
    assert all(left.begin + left.length == right.begin for left, right in itertools.pairwise(blocks))
    for tensor in header.tensors.values():
        own = [block for block in blocks if tensor.begin <= block.begin < tensor.end]
        assert sum(block.length for block in own) == tensor.byte_count
        coded = tensor.dtype in PLANES_BY_DTYPE and tensor.byte_count >= MIN_CODED_TENSOR
        assert all((block.planes is not None) == coded for block in own)


def test_a_model_folder_becomes_one_sidecar(source: Path, tmp_path: Path) -> None:
    """Every component folder of a model is prepared, sharded ones included, and found again by its name."""
    model = tmp_path / "model"
    for name in ("transformer", "vae"):
        (model / name).mkdir(parents=True)
    source.rename(model / "vae" / "d.safetensors")
    save_file({"a": normal(90_000, torch.bfloat16)}, model / "transformer" / "m-1.safetensors")
    save_file({"b": normal(90_000, torch.bfloat16, 1)}, model / "transformer" / "m-2.safetensors")
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    (model / "transformer" / "m.safetensors.index.json").write_text(json.dumps(index))
    (model / "tokenizer").mkdir()
    (model / "tokenizer" / "vocab.json").touch()
    prepare(model, tmp_path / "s", merge=NUMPY)
    assert read_all(model / "transformer", tmp_path / "s") == {
        "a": bits(normal(90_000, torch.bfloat16)),
        "b": bits(normal(90_000, torch.bfloat16, 1)),
    }
    assert len(read_all(model / "vae" / "d.safetensors", tmp_path / "s")) == 8
    assert set(inspect(tmp_path / "s")["components"]) == {"transformer", "vae"}
    assert verify(model, tmp_path / "s", merge=NUMPY).components == ("transformer", "vae")
    (model / "vae").rename(model / "vae_other")
    with pytest.raises(CheckpointError, match="no finished sidecar"):
        SidecarWeights(model / "vae_other", tmp_path / "s", merge=NUMPY).specs()


# --- damage ------------------------------------------------------------------------------------------------------


def read_or_error(source: Path, sidecar: Path) -> dict[str, bytes] | None:
    try:
        return read_all(source, sidecar)
    except CheckpointError:
        return None


def test_every_flipped_bit_is_an_error(source: Path, tmp_path: Path) -> None:
    """One flipped bit anywhere in data file or manifest is an error; only the padding at the end may differ."""
    prepare(source, tmp_path / "s", merge=NUMPY, block_bytes=65_536)
    good = read_all(source, tmp_path / "s")
    draw = random.Random(0)
    for name in ("shard-00000.bin", "manifest.json"):
        path = tmp_path / "s" / name
        content = path.read_bytes()
        used = len(content.rstrip(b"\0"))
        for _ in range(120):
            bit = draw.randrange(8 * used)
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            assert read_or_error(source, tmp_path / "s") is None, f"{name} bit {bit}"
        path.write_bytes(content)
    assert read_all(source, tmp_path / "s") == good


@pytest.mark.parametrize("workers", [1, 4])
def test_a_failed_read_releases_everything(source: Path, tmp_path: Path, workers: int) -> None:
    """A damaged block leaves no descriptor and no thread of the reader behind, and the next file reads as ever."""
    prepare(source, tmp_path / "s", merge=NUMPY, block_bytes=65_536)
    path = tmp_path / "s" / "shard-00000.bin"
    content = path.read_bytes()
    good = read_all(source, tmp_path / "s", workers)
    path.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        with pytest.raises(CheckpointError):
            read_all(source, tmp_path / "s", workers)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (descriptors, threads)
    path.write_bytes(content)
    assert read_all(source, tmp_path / "s", workers) == good


def test_a_changed_index_of_the_original_is_an_error(source: Path, tmp_path: Path) -> None:
    """The index is bound like the shards: whatever changes in it, the sidecar is refused."""
    folder = tmp_path / "model"
    folder.mkdir()
    source.rename(folder / "w.safetensors")
    index = folder / "w.safetensors.index.json"
    names = MmapWeights(folder / "w.safetensors").specs()
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "w.safetensors")}))
    prepare(folder, tmp_path / "s", merge=NUMPY)
    assert read_all(folder, tmp_path / "s")
    index.write_text(index.read_text() + " ")
    with pytest.raises(CheckpointError, match="prepare"):
        read_all(folder, tmp_path / "s")


def test_the_frame_checksum_alone_catches_flipped_bits() -> None:
    """Behind the record digest stands the codec's own checksum: a flip in a frame never decodes silently."""
    merge = make_merge(NUMPY)
    plain = normal(60_000, torch.bfloat16).view(torch.uint8).numpy()
    from vflash_adapters.weights.sidecar.blocks import Block

    block = Block(begin=0, length=len(plain), dtype="BF16", planes=Planes.BF16)
    record = BlockEncoder(merge).encode(block, plain)
    whole = np.concatenate(record.parts)
    decoder, out = BlockDecoder(merge), np.empty(len(plain), dtype=np.uint8)
    draw = random.Random(1)
    bits_to_flip = [draw.randrange(8 * record.row.coded) for _ in range(300)]
    bits_to_flip += range(8 * (record.row.coded - 4), 8 * record.row.coded)
    for bit in bits_to_flip:
        damaged = whole.copy()
        damaged[bit // 8] ^= 1 << bit % 8
        row = evolve(record.row, stored_xxh3=digest(damaged))
        with pytest.raises(CheckpointError, match="decode"):
            decoder.decode(block, row, damaged, out, "w")


@pytest.mark.parametrize("name", ["shard-00000.bin", "manifest.json"])
def test_every_truncation_is_an_error(source: Path, tmp_path: Path, name: str) -> None:
    """Cut anywhere, even by one byte, neither file gives a tensor."""
    prepare(source, tmp_path / "s", merge=NUMPY)
    path = tmp_path / "s" / name
    content = path.read_bytes()
    for length in [0, 1, len(content) // 2, len(content) - 4096, len(content) - 1]:
        path.write_bytes(content[: max(length, 0)])
        assert read_or_error(source, tmp_path / "s") is None
    path.write_bytes(content + b"\0")
    assert read_or_error(source, tmp_path / "s") is None
    path.unlink()
    assert read_or_error(source, tmp_path / "s") is None


def resealed(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        body = json.loads(path.read_bytes())["body"]
        change(body)
        path.write_bytes(seal(KIND, body))

    return apply


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: body["shards"][0]["rows"].pop(), "blocks, expected"),
        (lambda body: body["shards"][0]["rows"][0].__setitem__(0, -1), "cannot have a frame"),
        (lambda body: body["shards"][0]["rows"][0].__setitem__(0, 2**40), "cannot have a frame"),
        (lambda body: body["shards"][0]["rows"][0].__setitem__(2, "x"), "not a block row"),
        (lambda body: body["shards"][0]["rows"][0].__setitem__(0, True), "not a block row"),
        (lambda body: body["shards"][0]["rows"][0].__setitem__(1, 2**40), "cannot have a window"),
        (lambda body: body["shards"][0]["rows"][-1].__setitem__(1, 6), "cannot have a window"),
        (lambda body: body["shards"][0]["data"].__setitem__("file", "../x"), "does not match its blocks"),
        (lambda body: body["shards"][0]["data"].__setitem__("size", 2**40), "does not match its blocks"),
        (lambda body: body["shards"][0]["source"].__setitem__("size", 1), "size differ"),
        (lambda body: body["shards"][0]["dtypes"].clear(), "totals"),
        (lambda body: body["shards"].append(body["shards"][0]), "stands for 2 files"),
        (lambda body: body.__setitem__("block_bytes", 3), "block_bytes"),
        (lambda body: body.__setitem__("index_sha256", "0" * 64), "another index"),
        (lambda body: body.__setitem__("extra", 1), "exactly the fields"),
    ],
)
def test_a_manifest_that_lies_is_refused(source: Path, tmp_path: Path, change: object, words: str) -> None:
    """A manifest sealed anew over false contents still cannot point outside, claim sizes or skip blocks."""
    prepare(source, tmp_path / "s", merge=NUMPY)
    resealed(change)(tmp_path / "s" / "manifest.json")  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=words):
        read_all(source, tmp_path / "s")


def test_a_source_other_than_the_prepared_one_is_refused(source: Path, tmp_path: Path) -> None:
    """Same names and sizes with other content: the stamp differs, so the sidecar is not used."""
    prepare(source, tmp_path / "s", merge=NUMPY)
    tensors = load_file(source)
    tensors["int"] = tensors["int"] + 1
    save_file(tensors, source)
    with pytest.raises(CheckpointError, match="prepared from another"):
        read_all(source, tmp_path / "s")


def test_verify_compares_with_the_original(source: Path, tmp_path: Path) -> None:
    """A byte changed in the original under a restored time stamp is found by `verify`."""
    prepare(source, tmp_path / "s", merge=NUMPY)
    stamp = source.stat()
    with source.open("r+b") as file:
        file.seek(-9, 2)
        byte = file.read(1)
        file.seek(-9, 2)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(source, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert read_all(source, tmp_path / "s")
    with pytest.raises(CheckpointError, match="differs from its original"):
        verify(source, tmp_path / "s", merge=NUMPY)


# --- refusals ----------------------------------------------------------------------------------------------------


def test_an_existing_target_is_refused_and_untouched(source: Path, tmp_path: Path) -> None:
    """A sidecar is a new folder; what stands under its name is left alone."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "mine").touch()
    with pytest.raises(ContractError, match="exists already"):
        prepare(source, tmp_path / "s", merge=NUMPY)
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["mine"]
    with pytest.raises(ContractError, match="no such folder"):
        prepare(source, tmp_path / "no" / "s", merge=NUMPY)


@pytest.mark.parametrize("options", [{"workers": 3}, {"block_bytes": 5000}, {"block_bytes": 2**23}, {"block_bytes": 0}])
def test_bad_options_are_refused_before_reading(source: Path, tmp_path: Path, options: dict[str, int]) -> None:
    """Worker counts and block sizes are checked first."""
    with pytest.raises(ContractError, match=r"workers|block_bytes"):
        prepare(source, tmp_path / "s", merge=NUMPY, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "s").exists()


class Interrupting:
    """An observer that changes the source, or raises, at the first progress."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.calls: list[tuple[str, int, int]] = []

    def progress(self, stage: str, completed: int, total: int) -> None:
        self.calls.append((stage, completed, total))
        self._act()


def test_a_source_changed_while_preparing_leaves_nothing(source: Path, tmp_path: Path) -> None:
    """Preparation notices and discards; no folder, no leftovers."""
    with pytest.raises(CheckpointError, match="changed"):
        prepare(source, tmp_path / "s", merge=NUMPY, observer=Interrupting(lambda: os.utime(source)))  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.safetensors"]


def test_a_cancelled_preparation_leaves_nothing(source: Path, tmp_path: Path) -> None:
    """An observer that raises stops the work; nothing is left beside the source."""

    def cancel() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(source, tmp_path / "s", merge=NUMPY, observer=Interrupting(cancel))  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.safetensors"]


def test_progress_counts_the_originals_bytes(source: Path, tmp_path: Path) -> None:
    """Progress ends at exactly the source's size and never goes back."""
    observer = Interrupting(lambda: None)
    report = prepare(source, tmp_path / "s", merge=NUMPY, block_bytes=4096, observer=observer)  # type: ignore[arg-type]
    done = [completed for _, completed, _ in observer.calls]
    assert done == sorted(done)
    assert done[-1] == report.source_bytes == source.stat().st_size
    assert report.stored_bytes == (tmp_path / "s" / "shard-00000.bin").stat().st_size


def test_inspect_refuses_what_is_no_sidecar(tmp_path: Path) -> None:
    """A missing or unfinished folder has nothing to show."""
    with pytest.raises(CheckpointError, match="no such folder"):
        inspect(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="no finished sidecar"):
        inspect(tmp_path)
