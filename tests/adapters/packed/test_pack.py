"""Packing and unpacking: every file again byte for byte, equal tensors once, damage always noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from vflash_adapters.packed.narrow import NARROW, narrowed, widened
from vflash_adapters.packed.pack import pack_folder
from vflash_adapters.packed.packed_manifest import MANIFEST_NAME, PAYLOAD_NAME, read_manifest
from vflash_adapters.packed.unpack import unpack_folder
from vflash_ports.errors import CheckpointError, ContractError, VflashError

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().flatten().view(torch.uint8).numpy()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two components that share a large tensor, one that is exact in half precision, configs, an empty file."""
    torch.manual_seed(0)
    folder = tmp_path / "source"
    shared = torch.randn(300, 400).bfloat16()
    for name in ("transformer", "transformer_ref"):
        (folder / name).mkdir(parents=True)
        own = torch.randn(7, 9)
        save_file({"shared": shared, "own": own, "scalar": torch.tensor(3.5)}, folder / name / "model.safetensors")
        (folder / name / "config.json").write_text('{"width": 400}')
    (folder / "vae").mkdir()
    save_file({"w": torch.randn(200, 300).half().float(), "empty": torch.zeros(0, 4)}, folder / "vae/vae.safetensors")
    (folder / "note.txt").write_bytes(b"")
    return folder


def test_every_file_comes_back(source: Path, tmp_path: Path) -> None:
    """The same names and the same bytes, in subfolders too."""
    pack_folder(source, tmp_path / "packed")
    unpack_folder(tmp_path / "packed", tmp_path / "again")
    assert contents(tmp_path / "again") == contents(source)


def test_what_two_files_share_is_stored_once(source: Path, tmp_path: Path) -> None:
    """The second copy costs a line in the manifest; half-precision values cost two bytes, not four."""
    whole = pack_folder(source, tmp_path / "packed")
    shutil.rmtree(source / "transformer_ref")
    alone = pack_folder(source, tmp_path / "alone")
    assert whole - alone < 1500
    assert whole < 300 * 400 * 2 + 200 * 300 * 2
    streams = {stream.name: stream.length for stream in read_manifest(tmp_path / "packed").streams}
    assert streams["F16"] == 200 * 300 * 2


def test_packing_repeats_its_bytes(source: Path, tmp_path: Path) -> None:
    """File times and places do not matter."""
    pack_folder(source, tmp_path / "packed")
    shutil.copytree(source, tmp_path / "moved", copy_function=shutil.copyfile)
    pack_folder(tmp_path / "moved", tmp_path / "repeated")
    assert contents(tmp_path / "repeated") == contents(tmp_path / "packed")


@st.composite
def checkpoints(draw: st.DrawFn) -> list[dict[str, torch.Tensor]]:
    """Files whose tensors are drawn from one small set, so that many are shared; any bits, NaN and infinity too."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    known = []
    for _ in range(draw(st.integers(1, 4))):
        dtype = draw(st.sampled_from(DTYPES))
        shape = draw(st.lists(st.integers(0, 9), max_size=3))
        if dtype is torch.bool:
            known.append(torch.from_numpy(rng.integers(0, 2, shape).astype(bool)))
            continue
        width = torch.empty(0, dtype=dtype).element_size()
        raw = rng.integers(0, 256, (int(np.prod(shape)), width), dtype=np.uint8)
        if dtype is torch.float32 and draw(st.booleans()):
            raw[:, : draw(st.integers(0, 4))] = 0  # values that a two-byte format may hold
        flat = torch.frombuffer(bytearray(raw.tobytes()), dtype=dtype) if raw.size else torch.empty(0, dtype=dtype)
        known.append(flat.reshape(shape))
    picks = st.lists(st.sampled_from(range(len(known))), max_size=6)
    return [{f"t{i}": known[p].clone() for i, p in enumerate(draw(picks))} for _ in range(draw(st.integers(1, 3)))]


@settings(deadline=None, max_examples=40)
@given(files=checkpoints())
def test_any_tensors_come_back(files: list[dict[str, torch.Tensor]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every dtype, every bit pattern, shared or not."""
    root = tmp_path_factory.mktemp("any")
    (root / "source").mkdir()
    for number, tensors in enumerate(files):
        save_file(tensors, root / "source" / f"{number}.safetensors")
    pack_folder(root / "source", root / "packed")
    unpack_folder(root / "packed", root / "again")
    assert contents(root / "again") == contents(root / "source")


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**32), kept=st.integers(0, 3), source=st.sampled_from(["bits", "half", "brain"]))
def test_narrowing_loses_no_bit(seed: int, kept: int, source: str) -> None:
    """What is called narrow widens to the very bits; values of a two-byte format always are narrow."""
    raw = np.random.default_rng(seed).integers(0, 256, (64, 4), dtype=np.uint8)
    raw[:, :kept] = 0
    values = torch.from_numpy(raw.reshape(-1).copy()).view(torch.float32)
    if source != "bits":
        values = values.nan_to_num(0, 1e4, -1e4).clamp(-6e4, 6e4).to(torch.half if source == "half" else torch.bfloat16)
    plain = bytes_of(values.float())
    stored, short = narrowed("F32", plain)
    assert np.array_equal(widened(stored, "F32", short), plain)
    assert source == "bits" or (stored in NARROW and len(short) == len(plain) // 2)


def test_other_dtypes_are_left_alone() -> None:
    """Only float32 is ever narrowed."""
    plain = np.zeros(16, dtype=np.uint8)
    assert [narrowed(dtype, plain)[0] for dtype in ("F64", "I64", "BF16", "F16")] == ["F64", "I64", "BF16", "F16"]


@pytest.mark.parametrize("place", [0.0, 0.3, 0.61, 0.9, 0.9999])
@pytest.mark.parametrize("name", [MANIFEST_NAME, PAYLOAD_NAME])
def test_a_flipped_bit_is_noticed(name: str, place: float, source: Path, tmp_path: Path) -> None:
    """Anywhere in either file: an error, and no folder."""
    packed = tmp_path / "packed"
    pack_folder(source, packed)
    content = bytearray((packed / name).read_bytes())
    content[int(place * len(content))] ^= 4
    (packed / name).write_bytes(content)
    with pytest.raises(CheckpointError):
        unpack_folder(packed, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", [MANIFEST_NAME, PAYLOAD_NAME])
def test_a_cut_or_missing_file_is_noticed(name: str, source: Path, tmp_path: Path) -> None:
    """The message names the file."""
    packed = tmp_path / "packed"
    pack_folder(source, packed)
    (packed / name).write_bytes((packed / name).read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=name):
        unpack_folder(packed, tmp_path / "again")
    (packed / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        unpack_folder(packed, tmp_path / "again")


def resealed(packed: Path, change: object) -> None:
    """The manifest with another body, sealed as if it were meant."""
    from vflash_adapters.manifest import seal
    from vflash_adapters.packed.packed_manifest import KIND

    body = json.loads((packed / MANIFEST_NAME).read_text())["body"]
    change(body)  # type: ignore[operator]
    (packed / MANIFEST_NAME).write_bytes(seal(KIND, body))


def _set(body: dict, part: str, number: int, **fields: object) -> None:  # type: ignore[type-arg]
    body[part][number].update(fields)


FORGED = {
    "a path that leaves the folder": lambda body: _set(body, "files", 0, path="../out"),
    "an absolute path": lambda body: _set(body, "files", 0, path="/tmp/out"),
    "a hidden file": lambda body: _set(body, "files", 0, path="vae/.hidden"),
    "too large a file": lambda body: _set(body, "files", 0, size=2**40),
    "too long a stream": lambda body: _set(body, "streams", 0, length=2**50),
    "a stream without rows": lambda body: _set(body, "streams", 0, rows=[]),
    "an unknown stream": lambda body: _set(body, "files", -1, pieces=[["F64", 0]] * 2),
    "a piece beyond its stream": lambda body: _set(body, "files", -1, pieces=[["F16", 10**6]] * 2),
    "too few pieces": lambda body: _set(body, "files", -1, pieces=[["F16", 0]]),
    "a foreign piece": lambda body: _set(body, "files", -1, pieces=[["BF16", 0]] * 2),
    "a head beyond the stream": lambda body: _set(body, "files", -1, head=[0, 10**7]),
    "a negative head": lambda body: _set(body, "files", -1, head=[-5, 4]),
    "a digest of something else": lambda body: _set(body, "files", -1, sha256="0" * 64),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_manifest_is_refused(forged: str, source: Path, tmp_path: Path) -> None:
    """A seal that fits does not make a manifest right."""
    packed = tmp_path / "packed"
    pack_folder(source, packed)
    resealed(packed, FORGED[forged])
    with pytest.raises(CheckpointError):
        unpack_folder(packed, tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed", "source"]


def test_what_cannot_be_packed_is_refused(source: Path, tmp_path: Path) -> None:
    """An empty folder, a hidden file, a damaged safetensors file, an output that exists: nothing is left behind."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="no file to pack"):
        pack_folder(tmp_path / "empty", tmp_path / "packed")
    with pytest.raises(ContractError, match="exists already"):
        pack_folder(source, tmp_path / "empty")
    for name, content in ((".hidden", b"x"), ("broken.safetensors", b"\x10" + b"\0" * 30)):
        (source / name).write_bytes(content)
        with pytest.raises(VflashError, match=name):
            pack_folder(source, tmp_path / "packed")
        (source / name).unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "source"]
