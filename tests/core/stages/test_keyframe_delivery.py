"""Keyframe delivery exact-v1: the given pictures are bit-exact at the ends before compression, and blended in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vflash.stages.keyframe_delivery import ExactEnds, exact_ends
from vflash_adapters.media.frames_dir import FramesDirSink
from vflash_ports.errors import ContractError
from vflash_ports.media import Clip


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def picture(seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (8, 12, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=30)
@given(count=st.integers(8, 40), chunk=st.integers(1, 17), which=st.sampled_from(["first", "last", "both"]))
def test_ends_are_exact_and_feathered_however_frames_arrive(count: int, chunk: int, which: str) -> None:
    """Shares 1, 3/4, 1/2, 1/4 from each given end, all other frames untouched, the decoder's chunks unwritten."""
    frames = noise(count, 3, 8, 12)
    kept = frames.clone()
    first = picture(1) if which != "last" else None
    last = picture(2) if which != "first" else None
    ends = ExactEnds(first=first, last=last)
    found = torch.cat(list(exact_ends(iter(frames.split(chunk)), count, ends)))
    assert torch.equal(frames, kept)
    wanted = frames.clone()
    for offset, share in enumerate((1.0, 0.75, 0.5, 0.25)):
        for given_picture, index in ((first, offset), (last, count - 1 - offset)):
            if given_picture is not None:
                exact = given_picture.permute(2, 0, 1).float() / 255
                wanted[index] = share * exact + (1 - share) * frames[index]
    assert torch.allclose(found, wanted, atol=1e-6)
    report = ends.report(count)
    assert report["exact_frames"] == [0] * (first is not None) + [count - 1] * (last is not None)
    assert len(report["transition_frames"]) == 3 * ((first is not None) + (last is not None))


def test_delivered_ends_are_the_pictures_bit_for_bit(tmp_path: Path) -> None:
    """Through a lossless sink, the first and last frame are the given bytes."""
    ends = ExactEnds(first=picture(3), last=picture(4))
    clip = Clip(
        width=12,
        height=8,
        frame_count=24,
        fps=24,
        frames=exact_ends(iter(noise(24, 3, 8, 12).split(5)), 24, ends),
        waveform=torch.zeros((2, 32000)),
        sample_rate_hz=32000,
    )
    FramesDirSink().write(clip, tmp_path / "out")
    for name, wanted in (("frame-00000.png", picture(3)), ("frame-00023.png", picture(4))):
        assert np.array_equal(np.asarray(Image.open(tmp_path / "out" / name)), wanted.numpy())


def test_it_needs_a_keyframe_of_the_clips_size_and_room() -> None:
    """No picture, a picture of another size, and a clip too short for the blends are each refused."""
    with pytest.raises(ContractError, match="needs a first or a last"):
        exact_ends(iter([]), 120, ExactEnds())
    with pytest.raises(ContractError, match="the clip has 7"):
        exact_ends(iter([]), 7, ExactEnds(first=picture(1), last=picture(2)))
    with pytest.raises(ContractError, match="not the clip's size"):
        list(exact_ends(iter([noise(8, 3, 16, 12)]), 8, ExactEnds(first=picture(1))))
