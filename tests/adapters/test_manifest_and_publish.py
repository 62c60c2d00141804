"""Sealed manifests and atomic publication: altered is refused, half is never seen, existing is never replaced."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from vflash_adapters import publish
from vflash_adapters.manifest import ManifestKind, read_sealed, require_fields, seal, write_sealed
from vflash_adapters.publish import new_directory, new_file
from vflash_ports.errors import BusyError, CheckpointError, ContractError, ExecutionError

KIND = ManifestKind(format="vflash-test", version=2, max_bytes=4096)
BODY = {"name": "重み", "sizes": [1, 2, 3], "nothing": None}
FIELDS = {"name": str, "sizes": list, "nothing": type(None)}


def test_a_sealed_manifest_reads_back(tmp_path: Path) -> None:
    """What was sealed is what is read; the file is canonical JSON."""
    write_sealed(tmp_path / "m.json", KIND, BODY)
    assert read_sealed(tmp_path / "m.json", KIND, FIELDS) == BODY
    assert json.loads((tmp_path / "m.json").read_bytes())["version"] == 2
    with pytest.raises(FileExistsError):
        write_sealed(tmp_path / "m.json", KIND, BODY)


def test_every_single_bit_is_sealed(tmp_path: Path) -> None:
    """Each bit of the file, white space and digest included, is covered."""
    content = seal(KIND, BODY)
    path = tmp_path / "m.json"
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"m\.json"):
            read_sealed(path, KIND, FIELDS)


@settings(deadline=None, max_examples=50)
@given(length=st.integers(0, 200))
def test_every_truncation_is_refused(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    """A cut manifest is no manifest."""
    content = seal(KIND, BODY)
    path = tmp_path_factory.getbasetemp() / "cut.json"
    path.write_bytes(content[: min(length, len(content) - 1)])
    with pytest.raises(CheckpointError):
        read_sealed(path, KIND, FIELDS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (seal(ManifestKind(format="vflash-other", version=2, max_bytes=9), BODY), "vflash-other"),
        (seal(ManifestKind(format="vflash-test", version=3, max_bytes=9), BODY), "version 3"),
        (seal(KIND, {**BODY, "more": 1}), "exactly the fields"),
        (seal(KIND, {**BODY, "sizes": 1}), "field sizes must be list"),
        (b"[" * 4000, "JSON"),
        (b" " * 5000, "larger than"),
        (json.dumps(json.loads(seal(KIND, BODY)), indent=1).encode(), "altered"),
    ],
)
def test_foreign_manifests_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """Another format, version, shape or layout is named in the message."""
    (tmp_path / "m.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        read_sealed(tmp_path / "m.json", KIND, FIELDS)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_sealed(tmp_path / "gone.json", KIND, FIELDS)


def test_bool_is_no_int() -> None:
    """JSON true does not pass as a number."""
    with pytest.raises(CheckpointError, match="must be int"):
        require_fields({"size": True}, {"size": int}, "x")


def test_a_directory_appears_whole(tmp_path: Path) -> None:
    """Nothing is visible under the name until the block has ended well."""
    with new_directory(tmp_path / "d") as work:
        (work / "sub").mkdir()
        (work / "sub" / "f").write_text("x")
        assert not (tmp_path / "d").exists()
    assert (tmp_path / "d" / "sub" / "f").read_text() == "x"
    assert os.listdir(tmp_path) == ["d"]


def test_a_failed_block_leaves_nothing(tmp_path: Path) -> None:
    """An exception removes the work directory."""

    def fail() -> None:
        with new_directory(tmp_path / "d") as work:
            (work / "f").touch()
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert os.listdir(tmp_path) == []


def _full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("No space left")])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    """What the system or safetensors refuses while a folder is filled names the folder and the cure."""

    def fail() -> None:
        with new_directory(tmp_path / "d") as work:
            (work / "half").touch()
            raise error

    with pytest.raises(ExecutionError, match=r"d: could not be written .*No space left.*free space"):
        fail()
    assert os.listdir(tmp_path) == []


def test_a_file_on_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a single file."""
    monkeypatch.setattr(publish.os, "fsync", _full_disk)
    with pytest.raises(ExecutionError, match=r"f: could not be written .*free space"):
        new_file(tmp_path / "f", b"x")
    assert os.listdir(tmp_path) == []


def test_leftovers_of_a_killed_writer_are_cleared(tmp_path: Path) -> None:
    """A work directory without a live owner is emptied, not published."""
    (tmp_path / ".d.preparing" / "old").mkdir(parents=True)
    (tmp_path / ".d.preparing" / "stale").touch()
    with new_directory(tmp_path / "d") as work:
        (work / "new").touch()
    assert os.listdir(tmp_path / "d") == ["new"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """Two writers of one name: the second is told, the first is not disturbed."""
    with new_directory(tmp_path / "d") as work:
        (work / "f").touch()
        with pytest.raises(BusyError, match="another process"), new_directory(tmp_path / "d"):
            pass
    assert os.listdir(tmp_path / "d") == ["f"]


@pytest.mark.parametrize("has_renameat2", [True, False])
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_a_name_taken_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_renameat2: bool, kind: str
) -> None:
    """What appeared under the name while we worked stays as it is, with either way of renaming."""
    if not has_renameat2:
        monkeypatch.setattr(publish, "_renameat2", lambda work, final: errno.EINVAL)
    target = tmp_path / "d"

    def race() -> None:
        if kind == "directory":
            with new_directory(target) as work:
                (work / "f").touch()
                target.mkdir()
        else:
            monkeypatch.setattr(os, "fsync", lambda descriptor: target.touch())
            new_file(target, b"mine")

    with pytest.raises(ContractError, match="appeared while"):
        race()
    assert os.listdir(tmp_path) == ["d"]
    assert not (os.listdir(target) if kind == "directory" else target.read_bytes())


@pytest.mark.parametrize("has_renameat2", [True, False])
def test_a_new_file_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_renameat2: bool) -> None:
    """Files are published the same way, also where the file system has no such rename."""
    if not has_renameat2:
        monkeypatch.setattr(publish, "_renameat2", lambda work, final: errno.ENOSYS)
    new_file(tmp_path / "f", b"content")
    with new_directory(tmp_path / "d") as work:
        (work / "x").touch()
    assert sorted(os.listdir(tmp_path)) == ["d", "f"]
    assert (tmp_path / "f").read_bytes() == b"content"
    with pytest.raises(ContractError, match="exists already"):
        new_file(tmp_path / "f", b"other")
