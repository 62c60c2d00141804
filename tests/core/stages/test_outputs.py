"""Where a request writes: planned together, refused before any work, published whole."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from vflash.stages.outputs import Outputs, plan_outputs, write_receipt
from vflash_ports.errors import ContractError, DeliveryError, MediaError
from vflash_ports.media import Latents


class Target:
    """A sink and a latent store that refuse what exists and remember what they were asked about."""

    name = "target"

    def __init__(self) -> None:
        self.checked: list[Path] = []

    def check(self, path: Path) -> None:
        self.checked.append(path)
        if path.exists():
            raise MediaError(f"{path} exists")

    def save(self, latents: Latents, path: Path) -> None:
        raise AssertionError("not in these tests")

    def load(self, path: Path) -> Latents:
        raise AssertionError("not in these tests")

    def write(self, clip: object, output: Path) -> object:
        raise AssertionError("not in these tests")


def test_the_receipt_and_the_latents_lie_beside_the_clip(tmp_path):
    """Names follow the clip's; latents are kept for good only when they were asked for."""
    outputs = plan_outputs(tmp_path / "a.b.mp4", None)
    assert outputs == Outputs(
        video=tmp_path / "a.b.mp4",
        receipt=tmp_path / "a.b.receipt.json",
        latents=tmp_path / "a.b.latents.safetensors",
        keep_latents=False,
    )
    kept = plan_outputs(tmp_path / "a.mp4", tmp_path / "mine.safetensors")
    assert (kept.latents, kept.keep_latents) == (tmp_path / "mine.safetensors", True)


def test_sink_store_and_receipt_are_all_checked(tmp_path):
    """Any one of the three that exists stops the request; latents that are the input are not an output."""
    outputs = plan_outputs(tmp_path / "a.mp4", None)
    sink, store = Target(), Target()
    outputs.check(sink, store)
    assert (sink.checked, store.checked) == ([outputs.video], [outputs.latents])
    for path in (outputs.video, outputs.latents):
        path.touch()
        with pytest.raises(MediaError, match="exists"):
            outputs.check(Target(), Target())
        path.unlink()
    outputs.latents.touch()
    outputs.check(Target(), None)


@pytest.mark.parametrize("kind", ["file", "folder", "dangling link"])
def test_an_existing_receipt_is_never_overwritten(tmp_path, kind):
    """Refused before any work, whatever it is."""
    outputs = plan_outputs(tmp_path / "a.mp4", None)
    if kind == "file":
        outputs.receipt.touch()
    elif kind == "folder":
        outputs.receipt.mkdir()
    else:
        outputs.receipt.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ContractError, match=r"a.receipt.json exists; .* choose another output name"):
        outputs.check(Target(), Target())


@pytest.mark.parametrize("latents", ["a.mp4", "a.receipt.json", "./a.mp4"])
def test_latents_do_not_take_the_place_of_the_clip(tmp_path, monkeypatch, latents):
    """They are saved before the clip is encoded: the clip would then have nowhere to go."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ContractError, match=r"save_latents .* name another file"):
        plan_outputs(Path("a.mp4"), Path(latents))


@pytest.mark.parametrize("output", ["", ".", "/"])
def test_an_output_names_a_file(output):
    """Not a folder."""
    with pytest.raises(ContractError, match="output must name a file"):
        plan_outputs(Path(output), None)


def test_a_receipt_is_readable_json(tmp_path):
    """In any language, ending with a newline, and readable for whom the folder's other files are."""
    path = tmp_path / "a.receipt.json"
    write_receipt({"mode": "t2va", "text": "雨"}, path)
    assert json.loads(path.read_text(encoding="utf-8")) == {"mode": "t2va", "text": "雨"}
    assert "雨" in path.read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8").endswith("}\n")
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.receipt.json", "plain"]


def test_a_receipt_never_replaces_what_appeared_meanwhile(tmp_path):
    """The file that is there stays as it is, nothing of ours is left, and the message says that the clip is done."""
    path = tmp_path / "a.receipt.json"
    path.write_text("mine")
    with pytest.raises(DeliveryError, match="the video is complete, but its receipt"):
        write_receipt({"mode": "t2va"}, path)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_without_hard_links_gets_its_receipt_too(tmp_path, monkeypatch):
    """Some network and removable disks have none; what exists is still kept."""

    def refuse(source: object, target: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "a.receipt.json"
    write_receipt({"mode": "t2va"}, path)
    assert json.loads(path.read_text()) == {"mode": "t2va"}
    with pytest.raises(DeliveryError, match="exists"):
        write_receipt({"mode": "i2va"}, path)
    assert json.loads(path.read_text()) == {"mode": "t2va"}


def test_a_receipt_appears_whole(tmp_path):
    """A reader that polls never sees a part of it."""
    path = tmp_path / "a.receipt.json"
    sizes: set[int] = set()
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            if path.exists():
                sizes.add(path.stat().st_size)

    reader = threading.Thread(target=poll)
    reader.start()
    write_receipt({"value": ["x" * 1000] * 3000}, path)
    done.set()
    reader.join()
    assert sizes <= {path.stat().st_size}


def test_a_receipt_that_cannot_be_written_leaves_nothing(tmp_path):
    """A value that JSON cannot hold, and a folder that is gone."""
    with pytest.raises(TypeError):
        write_receipt({"tensor": object()}, tmp_path / "a.receipt.json")
    assert os.listdir(tmp_path) == []
    with pytest.raises(DeliveryError, match=r"receipt .* cannot be written"):
        write_receipt({}, tmp_path / "none" / "a.receipt.json")
