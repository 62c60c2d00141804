"""Kept latents come back bit for bit, are never written over, and a file that is not ours is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vflash_adapters.media.latent_store import SafetensorsLatentStore
from vflash_ports.errors import MediaError
from vflash_ports.media import Latents

STORE = SafetensorsLatentStore()


def some_latents() -> Latents:
    seeded = torch.Generator().manual_seed(7)
    return Latents(
        video=torch.randn((1, 24, 7, 2, 4), generator=seeded),
        audio=torch.randn((2, 32, 37), generator=seeded),
        metadata={"seed": "7", "prompt": "雪"},
    )


def test_latents_return_bit_for_bit_with_their_metadata(tmp_path: Path) -> None:
    """What was saved is what is loaded, and nothing else is left in the folder."""
    kept = some_latents()
    STORE.save(kept, tmp_path / "kept.safetensors")
    found = STORE.load(tmp_path / "kept.safetensors")
    assert torch.equal(found.video, kept.video)
    assert torch.equal(found.audio, kept.audio)
    assert found.metadata == kept.metadata
    assert [path.name for path in tmp_path.iterdir()] == ["kept.safetensors"]


@pytest.mark.parametrize("kind", ["file", "symlink", "dangling"])
def test_nothing_is_written_over(kind: str, tmp_path: Path) -> None:
    """An existing file, a link to one and a dangling link are all refused, before and at saving."""
    target, other = tmp_path / "kept", tmp_path / "other"
    if kind == "file":
        target.write_bytes(b"mine")
    else:
        target.symlink_to(other)
        if kind == "symlink":
            other.write_bytes(b"mine")
    for act in (STORE.check, lambda path: STORE.save(some_latents(), path)):
        with pytest.raises(MediaError, match=r"exists already.*vflash decode"):
            act(target)
    assert kind == "dangling" or target.read_bytes() == b"mine"


def test_a_weight_file_is_told_from_latents_in_one_line(tmp_path: Path) -> None:
    """Some of its names, and how many more there are."""
    save_file({f"block.{number:03}.weight": torch.zeros(1) for number in range(900)}, tmp_path / "weights")
    with pytest.raises(MediaError, match=r"holds block\.000\.weight, .*002\.weight and 897 more, not exactly"):
        STORE.load(tmp_path / "weights")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": torch.zeros(1)}, "not exactly"),
        ({"video_latents": None}, "not exactly"),
        ({"video_latents": torch.zeros((1, 24, 7, 2, 4), dtype=torch.bfloat16)}, "not float32"),
        ({"video_latents": torch.zeros((2, 24, 7, 2, 4))}, "video_latents has shape"),
        ({"audio_latents": torch.zeros((2, 32))}, "audio_latents has shape"),
        ({"audio_latents": torch.full((2, 32, 5), float("nan"))}, "audio_latents holds NaN"),
    ],
)
def test_a_wrong_file_is_refused_by_tensor(
    change: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    """Extra, missing, mistyped, misshapen and non-finite tensors are each named."""
    tensors = {"video_latents": torch.zeros((1, 24, 7, 2, 4)), "audio_latents": torch.zeros((2, 32, 5))} | change
    save_file({name: value for name, value in tensors.items() if value is not None}, tmp_path / "wrong")
    with pytest.raises(MediaError, match=message):
        STORE.load(tmp_path / "wrong")


def test_a_damaged_or_missing_file_is_refused(tmp_path: Path) -> None:
    """A truncated file, a file of noise and no file at all are user errors, not crashes."""
    STORE.save(some_latents(), tmp_path / "kept")
    (tmp_path / "short").write_bytes((tmp_path / "kept").read_bytes()[:-100])
    (tmp_path / "noise").write_bytes(b"\xff" * 500)
    for name in ("short", "noise", "absent"):
        with pytest.raises(MediaError, match=name):
            STORE.load(tmp_path / name)
