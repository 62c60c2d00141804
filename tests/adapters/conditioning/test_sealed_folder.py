"""A sealed bundle: what goes in comes out bit for bit, and nothing that was touched is ever read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from attrs import evolve

from vflash_adapters.conditioning.sealed_folder import MANIFEST, TENSORS, SealedFolder
from vflash_ports.conditioning import ConditioningBundle
from vflash_ports.errors import CheckpointError, ContractError

STORE = SealedFolder()


def bundle(seed: int = 0) -> ConditioningBundle:
    generator = torch.Generator().manual_seed(seed)
    return ConditioningBundle(
        embeds=torch.randn(7, 12, generator=generator).bfloat16(),
        tags=torch.tensor([1, 1, 0, 0, 1, 1, 1]),
        video=(torch.randn(1, 4, 1, 2, 3, generator=generator), torch.randn(1, 4, 2, 2, 2, generator=generator)),
        audio=(torch.randn(2, 5, 3, generator=generator),),
        body={"request": {"seed": 2**63 - 1, "words": "绿"}, "schedule": {"video_shift": 12.0}, "conditions": []},
    )


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    STORE.save(bundle(), tmp_path / "bundle")
    return tmp_path / "bundle"


def test_what_goes_in_comes_out(sealed: Path) -> None:
    """Every tensor's bits and dtype, and the body's values; the id is in the bundle that comes back."""
    found, made = STORE.load(sealed), bundle()
    for one, other in zip(
        (found.embeds, found.tags, *found.video, *found.audio),
        (made.embeds, made.tags, *made.video, *made.audio),
        strict=True,
    ):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert found.body == made.body
    assert found.bundle_id.startswith("h3-conditioning-")


def test_the_id_is_the_content(tmp_path: Path) -> None:
    """Equal content has an equal id wherever and whenever it is sealed; any other tensor or word another one."""
    first = STORE.save(bundle(), tmp_path / "a")
    assert STORE.save(bundle(), tmp_path / "b") == first
    others = [bundle(1), evolve(bundle(), body={**bundle().body, "schedule": {"video_shift": 6.0}})]
    assert len({first, *(STORE.save(other, tmp_path / f"c{n}") for n, other in enumerate(others))}) == 3


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def edit_manifest(folder: Path, change: Callable[[dict], None]) -> None:
    values = json.loads((folder / MANIFEST).read_text())
    change(values)
    (folder / MANIFEST).write_text(json.dumps(values))


TAMPERING: dict[str, Callable[[Path], object]] = {
    "a flipped bit in a tensor": lambda folder: flip(folder / TENSORS, -5),
    "a flipped bit in the header": lambda folder: flip(folder / TENSORS, 20),
    "tensors cut short": lambda folder: (folder / TENSORS).write_bytes((folder / TENSORS).read_bytes()[:-8]),
    "tensors gone": lambda folder: (folder / TENSORS).unlink(),
    "manifest gone": lambda folder: (folder / MANIFEST).unlink(),
    "a flipped bit in the manifest": lambda folder: flip(folder / MANIFEST, 40),
    "a stray file": lambda folder: (folder / "notes.txt").write_text("hello"),
    "tensors behind a link": lambda folder: (
        (folder / TENSORS).rename(folder.parent / "away"),
        (folder / TENSORS).symlink_to(folder.parent / "away"),
    ),
    "another seed in the manifest": lambda folder: edit_manifest(
        folder, lambda values: values["body"]["body"]["request"].update(seed=1)
    ),
    "another version": lambda folder: edit_manifest(folder, lambda values: values.update(version=2)),
}


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_is_refused(sealed: Path, how: str) -> None:
    """By name of the file, before any tensor is handed on."""
    TAMPERING[how](sealed)
    with pytest.raises(CheckpointError, match="bundle"):
        STORE.load(sealed)


def test_tensors_of_another_bundle_are_refused(sealed: Path, tmp_path: Path) -> None:
    """Two honest halves do not make a bundle."""
    STORE.save(bundle(1), tmp_path / "other")
    shutil.copy(tmp_path / "other" / TENSORS, sealed / TENSORS)
    with pytest.raises(CheckpointError, match=r"altered"):
        STORE.load(sealed)


def test_a_missing_bundle_is_told_from_a_broken_one(tmp_path: Path) -> None:
    """A mistyped name has no preparation to complete."""
    with pytest.raises(CheckpointError, match=r"none: no such folder"):
        SealedFolder().load(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"bundle\.json: cannot be read"):
        SealedFolder().load(tmp_path)


def test_nothing_is_replaced_and_nothing_half_made_is_left(sealed: Path, tmp_path: Path) -> None:
    """An existing folder is refused before work, a failed save leaves no trace."""
    with pytest.raises(ContractError, match="exists"):
        STORE.check(sealed)
    with pytest.raises(ContractError, match="exists"):
        STORE.save(bundle(), sealed)
    with pytest.raises(ContractError, match="no such folder"):
        STORE.check(tmp_path / "none" / "bundle")
    with pytest.raises(ValueError, match="JSON"):
        STORE.save(evolve(bundle(), body={"nan": float("nan")}), tmp_path / "broken")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
