"""Files, folders and indexes: which choices are taken, which are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vflash_adapters.weights.checkpoint import read_checkpoint
from vflash_adapters.weights.file_identity import SparseFileWarning
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards and an index."""
    root = tmp_path / "model" / "transformer"
    root.mkdir(parents=True)
    save_file({"a": torch.arange(4)}, root / "m-1.safetensors")
    save_file({"b": torch.arange(5)}, root / "m-2.safetensors")
    write_index(root, {"a": "m-1.safetensors", "b": "m-2.safetensors"})
    return root


def write_index(root: Path, weight_map: object) -> None:
    (root / "m.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "m-1.safetensors"}, "does not list tensor 'b'|m-2"),
        ({"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-2.safetensors"}, "'c' is in m-2.safetensors"),
        ({"a": "m-2.safetensors", "b": "m-1.safetensors"}, "but it is not"),
        ({"a": "m-1.safetensors", "b": "../x.safetensors"}, "not a file of this folder"),
        ({"a": "m-1.safetensors", "b": "/etc/x.safetensors"}, "not a file of this folder"),
        ({"a": "m-1.safetensors", "b": "..\\x.safetensors"}, "not a file of this folder"),
        ({"a": "m-1.safetensors", "b": "m-2.safetensors\0"}, "not a file of this folder"),
        ({"a": "m-1.safetensors", "b": 2}, "not a file of this folder"),
        ({"a": "m-1.safetensors", "b": "m-3.safetensors"}, "missing shard"),
        ({}, "no weight_map"),
        ([], "no weight_map"),
    ],
)
def test_an_index_that_disagrees_is_refused(folder: Path, weight_map: object, words: str) -> None:
    """Unlisted, misplaced, absent and escaping entries are errors."""
    if weight_map == {"a": "m-1.safetensors"}:  # unlisted tensor of a listed shard
        save_file({"a": torch.arange(4), "b": torch.arange(5)}, folder / "m-1.safetensors")
    write_index(folder, weight_map)
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(folder)


def test_a_tensor_in_two_shards_is_refused(folder: Path) -> None:
    """The same name in two shards has no one value."""
    save_file({"a": torch.arange(4), "b": torch.arange(5)}, folder / "m-2.safetensors")
    with pytest.raises(CheckpointError, match=r"both m-1\.safetensors and m-2\.safetensors"):
        read_checkpoint(folder)


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b'{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}'])
def test_a_damaged_index_is_refused(folder: Path, body: bytes) -> None:
    """Cut, foreign and doubled JSON is an error naming the index."""
    (folder / "m.safetensors.index.json").write_bytes(body)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        read_checkpoint(folder)


def test_a_flipped_bit_of_an_index_never_gives_other_tensors(folder: Path) -> None:
    """Every single bit: an error, or the tensors as they are, from the shards they lie in."""
    (folder / "m.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 72}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})
    )
    index = folder / "m.safetensors.index.json"
    content = index.read_bytes()
    whole, refused = read_checkpoint(folder), 0
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        index.write_bytes(damaged)
        try:
            found = read_checkpoint(folder)
        except CheckpointError:
            refused += 1
            continue
        assert found.specs == whole.specs, bit
        assert [shard.path for shard in found.shards] == [shard.path for shard in whole.shards], bit
    assert refused > 4 * len(content)


def test_an_index_changed_after_the_headers_were_read_is_noticed(folder: Path) -> None:
    """The index is part of the component's identity."""
    source = MmapWeights(folder)
    source.specs()
    write_index(folder, {"a": "m-1.safetensors"})
    with pytest.raises(CheckpointError, match=r"index\.json.*changed"), source.open():
        pass


@pytest.mark.parametrize("suffix", [".incomplete", ".aria2", ".part"])
def test_leftovers_of_a_download_are_refused(folder: Path, suffix: str) -> None:
    """A file that a downloader left unfinished means the component may be incomplete."""
    (folder / f"m-2.safetensors{suffix}").touch()
    with pytest.raises(CheckpointError, match="unfinished download"):
        read_checkpoint(folder)
    with pytest.raises(CheckpointError, match="unfinished download"):
        read_checkpoint(folder / "m-2.safetensors")
    assert set(read_checkpoint(folder / "m-1.safetensors").specs) == {"a"}


def test_leftovers_in_the_hub_download_folder_are_refused(folder: Path) -> None:
    """The hub client keeps unfinished shards of `transformer/` under the model's own `.cache`."""
    cache = folder.parent / ".cache" / "huggingface" / "download" / "transformer"
    cache.mkdir(parents=True)
    (cache / "m-2.safetensors.abc.incomplete").touch()
    with pytest.raises(CheckpointError, match="unfinished download"):
        read_checkpoint(folder)


def test_ambiguous_and_empty_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    """Nothing is guessed: two indexes, several files without an index, no file at all."""
    (folder / "n.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="several indexes"):
        read_checkpoint(folder)
    for index in folder.glob("*.json"):
        index.unlink()
    with pytest.raises(CheckpointError, match=r"2 \.safetensors files and no"):
        read_checkpoint(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
        read_checkpoint(tmp_path / "empty")


def test_what_is_not_a_weight_file_is_refused(tmp_path: Path) -> None:
    """Missing paths, dangling links, other suffixes, pipes and folders in a shard's place."""
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "gone.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "w.bin").touch()
    for name, words in [
        ("gone", "no such file"),
        ("link.safetensors", "no such file"),
        ("pipe.safetensors", "not a regular file"),
        ("w.bin", r"not a \.safetensors"),
    ]:
        with pytest.raises(CheckpointError, match=words):
            read_checkpoint(tmp_path / name)
    (tmp_path / "holder" / "x.safetensors").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"not a regular file"):
        read_checkpoint(tmp_path / "holder")


def test_a_link_is_followed_and_its_target_identified(folder: Path, tmp_path: Path) -> None:
    """Caches keep shards as links into a blob store; pointing the link elsewhere is a change."""
    blob = tmp_path / "blob"
    (folder / "m-1.safetensors").rename(blob)
    (folder / "m-1.safetensors").symlink_to(blob)
    source = MmapWeights(folder)
    assert source.specs()["a"].shape == (4,)
    (tmp_path / "blob2").write_bytes(blob.read_bytes())
    (folder / "m-1.safetensors").unlink()
    (folder / "m-1.safetensors").symlink_to(tmp_path / "blob2")
    with pytest.raises(CheckpointError, match="changed"), source.open():
        pass


def test_a_sparse_file_warns(tmp_path: Path) -> None:
    """A file whose blocks were never written loads, but says so."""
    path = tmp_path / "w.safetensors"
    body = json.dumps({"a": {"dtype": "U8", "shape": [2**22], "data_offsets": [0, 2**22]}}).encode()
    with path.open("wb") as file:
        file.write(len(body).to_bytes(8, "little") + body)
        file.truncate(8 + len(body) + 2**22)
    with pytest.warns(SparseFileWarning, match="stored on disk"):
        assert read_checkpoint(path).specs["a"].byte_count == 2**22
