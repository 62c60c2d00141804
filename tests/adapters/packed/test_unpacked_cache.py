"""The cache: unpacked once, compared at every use, made again when it is not whole, safe for several at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vflash_adapters.packed.pack import pack_folder
from vflash_adapters.packed.unpacked_cache import cached_folder
from vflash_ports.errors import CheckpointError, ContractError


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    source = tmp_path / "source"
    (source / "vae").mkdir(parents=True)
    save_file({"w": torch.randn(400, 300).half().float()}, source / "vae" / "w.safetensors")
    (source / "vae" / "config.json").write_text("{}")
    pack_folder(source, tmp_path / "tiny_h3")
    return tmp_path / "tiny_h3"


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """What would change if a file were written again."""
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_the_second_use_writes_nothing(packed: Path, tmp_path: Path) -> None:
    """The name says what is in it; missing parents of the cache are made."""
    cache = tmp_path / "a" / "b"
    folder = cached_folder(packed, cache)
    before = state(cache)
    assert cached_folder(packed, cache) == folder
    assert state(cache) == before
    assert folder.parent == cache
    assert folder.name.startswith("tiny-h3-")
    assert (folder / "vae/w.safetensors").read_bytes() == (tmp_path / "source/vae/w.safetensors").read_bytes()


def test_other_content_has_another_name(packed: Path, tmp_path: Path) -> None:
    """Two releases do not meet in one folder."""
    (tmp_path / "source/vae/config.json").write_text('{"width": 2}')
    (tmp_path / "next").mkdir()
    pack_folder(tmp_path / "source", tmp_path / "next" / "tiny_h3")
    assert cached_folder(packed, tmp_path / "c") != cached_folder(tmp_path / "next" / "tiny_h3", tmp_path / "c")


@pytest.mark.parametrize("damage", ["bit", "cut", "missing", "extra", "emptied", "file", "link"])
def test_a_damaged_folder_is_made_again(damage: str, packed: Path, tmp_path: Path) -> None:
    """Whatever happened to it, the next use finds what was packed and nothing else."""
    cache = tmp_path / "cache"
    folder = cached_folder(packed, cache)
    weights = folder / "vae/w.safetensors"
    original = weights.read_bytes()
    if damage == "bit":
        weights.write_bytes(original[:-7] + bytes([original[-7] ^ 1]) + original[-6:])
    elif damage == "cut":
        weights.write_bytes(original[:-1])
    elif damage == "missing":
        weights.unlink()
    elif damage == "extra":
        (folder / "vae/other.safetensors").write_bytes(b"x")
    else:
        folder.rename(cache / "gone")
        if damage == "emptied":
            folder.mkdir()
        elif damage == "file":
            folder.write_bytes(b"x")
        else:
            folder.symlink_to(tmp_path / "nowhere")
    assert cached_folder(packed, cache) == folder
    assert weights.read_bytes() == original
    assert sorted(path.name for path in folder.rglob("*")) == ["config.json", "vae", "w.safetensors"]
    assert not list(cache.glob(".*damaged*"))
    assert (tmp_path / "source").exists()


def test_an_open_file_outlives_its_folder(packed: Path, tmp_path: Path) -> None:
    """Who mapped the weights keeps them while somebody else makes the folder again."""
    folder = cached_folder(packed, tmp_path / "cache")
    with (folder / "vae/w.safetensors").open("rb") as held:
        (folder / "vae/config.json").write_text("changed")
        cached_folder(packed, tmp_path / "cache")
        assert held.read() == (tmp_path / "source/vae/w.safetensors").read_bytes()


def test_first_uses_at_once_are_safe(packed: Path, tmp_path: Path) -> None:
    """Several processes start together: all get the same whole folder, and nothing is left over."""
    program = (
        "import sys, time; from pathlib import Path\n"
        "from vflash_adapters.packed.unpacked_cache import cached_folder\n"
        "time.sleep(max(0, float(sys.argv[3]) - time.time()))\n"
        "print(cached_folder(Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    start = str(time.time() + 1.5)
    command = [sys.executable, "-c", program, str(packed), str(tmp_path / "cache"), start]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)]
    told = {process.communicate(timeout=60)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(told) == 1
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {Path(*told).name, f".{Path(*told).name}.lock"}


def test_what_a_killed_first_use_left_is_removed(packed: Path, tmp_path: Path) -> None:
    """Half a folder under the working name does not disturb the next use."""
    folder = cached_folder(packed, tmp_path / "cache")
    left = folder.with_name(f".{folder.name}.preparing")
    folder.rename(left)
    (left / "vae/w.safetensors").write_bytes(b"half")
    assert cached_folder(packed, tmp_path / "cache") == folder
    assert not left.exists()


def test_a_cache_that_cannot_be_made_is_told(packed: Path, tmp_path: Path) -> None:
    """The message names the folder and the cure."""
    (tmp_path / "file").touch()
    with pytest.raises(ContractError, match=r"file/vflash cannot be made .*another as XDG_CACHE_HOME"):
        cached_folder(packed, tmp_path / "file" / "vflash")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_cache_that_is_whole_needs_no_writing(packed: Path, tmp_path: Path) -> None:
    """A read-only home is no obstacle once the folder is there, and a clear error before."""
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o500)
    with pytest.raises(ContractError, match="XDG_CACHE_HOME"):
        cached_folder(packed, cache)
    cache.chmod(0o700)
    folder = cached_folder(packed, cache)
    cache.chmod(0o500)
    assert cached_folder(packed, cache) == folder
    cache.chmod(0o700)


def test_a_damaged_package_is_told(packed: Path, tmp_path: Path) -> None:
    """Then there is nothing to make the folder from, and none appears."""
    (packed / "payload.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="install vflash again"):
        cached_folder(packed, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
