"""Frames to bytes on the host: one arithmetic, whatever the layout, the dtype and the chunking."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash_adapters.media.frame_bytes import STRIP_VALUES, frame_bytes

WIDTH = 6


def bytes_of(*clips: torch.Tensor) -> torch.Tensor:
    """uint8 [f, H, W, 3]; copied, because buffers are used again."""
    return torch.cat([part.pixels.clone() for part in frame_bytes(iter(clips))])


def by_float64(frames: torch.Tensor) -> np.ndarray:
    """Products of two float32 are exact in float64: rounded once to float32, they are the float32 product."""
    products = (frames.double() * 255).float().double()
    found: np.ndarray = np.rint(products.clamp(0, 255).numpy()).astype(np.uint8).transpose(0, 2, 3, 1)
    return found


def near_ties() -> torch.Tensor:
    """[1, 3, 256, W]: (k + 1/2) / 255 as float32, and one and two steps to either side of it."""
    ties = ((np.arange(-1, 255) + 0.5) / 255).astype(np.float32)
    ladder = [ties]
    for direction in (-np.inf, np.inf):
        step = ties
        for _ in range(2):
            step = np.nextafter(step, np.float32(direction), dtype=np.float32)
            ladder.append(step)
    columns = np.stack([*ladder, np.arange(-1, 255, dtype=np.float32) / 255], axis=1)
    return torch.from_numpy(columns).expand(1, 3, 256, WIDTH)


def test_float64_gives_the_same_bytes() -> None:
    """At every tie, around it, and for random values in and out of range; ties go to the even neighbour."""
    assert np.array_equal(bytes_of(near_ties()).numpy(), by_float64(near_ties()))
    random = torch.rand((9, 3, 50, 70), generator=torch.Generator().manual_seed(1)) * 2.8 - 0.9
    assert np.array_equal(bytes_of(random).numpy(), by_float64(random))
    products = near_ties()[0, 0, 1:, 0] * 255
    exact = products % 1 == 0.5
    assert exact.sum() > 100
    found = bytes_of(near_ties())[0, 1:, 0, 0]
    assert (found[exact] % 2 == 0).all()


@settings(deadline=None, max_examples=25)
@given(
    counts=st.lists(st.integers(1, 19), min_size=1, max_size=3),
    height=st.integers(1, 5),
    width=st.sampled_from([1, 2, 7, STRIP_VALUES // 2 - 1]),
    layout=st.sampled_from(["contiguous", "channels first", "expanded"]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_layout_dtype_and_chunking_change_nothing(
    counts: list[int], height: int, width: int, layout: str, dtype: torch.dtype
) -> None:
    """Strips that end within a frame too; at most eight frames a part; inputs stay as they were."""
    generator = torch.Generator().manual_seed(height)
    clips = [torch.rand((count, 3, height, width), generator=generator).to(dtype) for count in counts]
    if layout == "channels first":  # as `encode_mp4` cuts them from [1, 3, F, H, W]
        clips = [clip.transpose(0, 1).contiguous().transpose(0, 1) for clip in clips]
    elif layout == "expanded":
        clips = [clip[:, :, :, :1].expand(-1, -1, -1, width) for clip in clips]
    before = [clip.clone() for clip in clips]
    assert np.array_equal(bytes_of(*clips).numpy(), by_float64(torch.cat(clips).float()))
    sizes = [len(part.pixels) for part in frame_bytes(iter(clips))]
    assert sizes == [min(8, count - start) for count in counts for start in range(0, count, 8)]
    assert all(torch.equal(clip, kept) for clip, kept in zip(clips, before, strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_bounds_tell_what_is_not_finite(value: float) -> None:
    """In the part of eight frames that holds it, wherever it lies; other parts keep their own bounds."""
    frames = torch.full((20, 3, 3, 5), 0.25)
    frames[0, 0, 0, 0], frames[7, 2, 2, 4], frames[9, 1, 2, 3] = -0.5, 1.5, value
    bounds = [(part.lowest, part.highest) for part in frame_bytes(iter([frames]))]
    assert bounds[0] == (-0.5, 1.5)
    assert not all(math.isfinite(bound) for bound in bounds[1])
    assert bounds[2] == (0.25, 0.25)


def test_host_frames_are_not_asked_for_ahead() -> None:
    """A decoder on the CPU works only when the sink has taken what there is."""
    asked = []

    def clips() -> Iterator[torch.Tensor]:
        for number in range(3):
            asked.append(number)
            yield torch.zeros(9, 3, 2, 2)

    parts = frame_bytes(clips())
    seen = [(next(parts).pixels.shape[0], asked[-1]) for _ in range(6)]
    assert seen == [(8, 0), (1, 0), (8, 1), (1, 1), (8, 2), (1, 2)]
