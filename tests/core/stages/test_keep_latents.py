"""Finished latents: where they were meant to be, else in a second place, and either way it is said."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest
import torch
from fakes import FullDisk

from vflash.stages.keep_latents import keep_latents
from vflash_adapters.media.latent_store import SafetensorsLatentStore
from vflash_ports.errors import DeliveryError
from vflash_ports.media import Latents

STORE = SafetensorsLatentStore()


@pytest.fixture
def places(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """The folder asked for, and the system's temporary one."""
    asked, temporary = tmp_path / "asked", tmp_path / "temporary"
    asked.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return asked, temporary


def latents() -> Latents:
    return Latents(video=torch.rand(1, 2, 2, 3, 3), audio=torch.rand(2, 4, 5), metadata={"seed": "7"})


def test_they_are_saved_where_they_were_meant_to_be(places):
    """Nothing else is written, and there is nothing to say."""
    asked, temporary = places
    kept = keep_latents(latents(), STORE, asked / "a.safetensors")
    assert (kept.path, kept.trouble) == (asked / "a.safetensors", "")
    assert kept.describe() == {"path": str(asked / "a.safetensors"), "trouble": None}
    kept.require_wanted("")
    assert list(temporary.iterdir()) == []
    assert kept.discard().path is None
    assert list(asked.iterdir()) == []


@pytest.mark.parametrize("fault", ["full", "taken", "gone"])
def test_a_second_place_is_another_folder(places, fault):
    """A full disk, a name that another run took meanwhile, a folder that is gone: same bits, private, and told."""
    asked, temporary = places
    wanted = asked / "a.safetensors"
    store = FullDisk(STORE, asked) if fault == "full" else STORE
    if fault == "taken":
        wanted.write_text("mine")
    if fault == "gone":
        asked.rmdir()
    made = latents()
    kept = keep_latents(made, store, wanted)
    assert kept.path is not None
    assert kept.path.parent.parent == temporary
    assert kept.path.name == wanted.name
    assert stat.S_IMODE(kept.path.parent.stat().st_mode) == 0o700
    assert torch.equal(STORE.load(kept.path).video, made.video)
    assert str(wanted if fault != "gone" else asked) in kept.trouble
    with pytest.raises(DeliveryError, match=f"^well, but the latents could not be saved .* kept at {kept.path}$"):
        kept.require_wanted("well, but ")
    assert kept.discard().trouble == kept.trouble
    assert list(temporary.iterdir()) == []
    if fault == "taken":
        assert wanted.read_text() == "mine"


def test_where_no_place_takes_them_both_reasons_are_told(places, monkeypatch):
    """And no empty folder is left."""
    asked, temporary = places
    kept = keep_latents(latents(), FullDisk(STORE, asked, temporary), asked / "a")
    assert kept.path is None
    assert kept.trouble.count("no space left") == 2
    assert list(temporary.iterdir()) == []
    with pytest.raises(DeliveryError, match="they are kept nowhere"):
        kept.require_wanted("")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "none"))
    kept = keep_latents(latents(), FullDisk(STORE, asked), asked / "a")
    assert (kept.path, kept.discard().path) == (None, None)
    assert kept.trouble.endswith("no temporary folder can be made")
