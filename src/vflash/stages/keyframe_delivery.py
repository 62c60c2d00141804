"""Keyframe delivery `exact-v1`: the given pictures themselves stand at the ends, blended into the decoded frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from attrs import frozen

from vflash_ports.errors import ContractError

# The share of the given picture in the endpoint and in the three frames next to it.
FEATHER = (1.0, 0.75, 0.5, 0.25)


@frozen(kw_only=True, eq=False)
class ExactEnds:
    """uint8 RGB [H, W, 3] pictures of the clip's own size, as the model was given them, or None."""

    first: torch.Tensor | None = None
    last: torch.Tensor | None = None

    def report(self, frame_count: int) -> dict[str, Any]:
        """Which frames are exact and which are blended, by delivered index."""
        shares = _shares(self, frame_count)
        return {
            "profile": "exact-v1",
            "exact_frames": [index for index, (share, _) in shares.items() if share == 1.0],
            "transition_frames": [index for index, (share, _) in shares.items() if share < 1.0],
        }


def exact_ends(frames: Iterator[torch.Tensor], frame_count: int, ends: ExactEnds) -> Iterator[torch.Tensor]:
    """float32 chunks [f, 3, H, W] in, the same chunks out, with the ends replaced, on their device. Streams; never
    writes into a chunk.

    `ContractError` if there is no picture, if one is not the clip's size, or if the two blends would meet.
    """
    shares = _shares(ends, frame_count)
    return _blended(frames, shares)


def _shares(ends: ExactEnds, frame_count: int) -> dict[int, tuple[float, torch.Tensor]]:
    """Delivered index -> (share of the picture, the picture as float32 [3, H, W])."""
    given = [picture for picture in (ends.first, ends.last) if picture is not None]
    if not given:
        raise ContractError("keyframe delivery exact-v1 needs a first or a last frame; use decoded without one")
    if frame_count < len(FEATHER) * len(given):
        raise ContractError(
            f"keyframe delivery exact-v1 needs {len(FEATHER)} frames an end; the clip has {frame_count}"
        )
    shares: dict[int, tuple[float, torch.Tensor]] = {}
    for offset, share in enumerate(FEATHER):
        if ends.first is not None:
            shares[offset] = (share, _as_frame(ends.first))
        if ends.last is not None:
            shares[frame_count - 1 - offset] = (share, _as_frame(ends.last))
    return dict(sorted(shares.items()))


def _as_frame(picture: torch.Tensor) -> torch.Tensor:
    """Values k / 255, which every sink quantises back to k."""
    return picture.permute(2, 0, 1).to(torch.float32) / 255


def _blended(frames: Iterator[torch.Tensor], shares: dict[int, tuple[float, torch.Tensor]]) -> Iterator[torch.Tensor]:
    start = 0
    for chunk in frames:
        touched = [index for index in shares if start <= index < start + len(chunk)]
        count, result = len(chunk), chunk.clone() if touched else chunk
        for index in touched:
            share, on_host = shares[index]
            picture = on_host.to(chunk.device)
            if picture.shape != chunk.shape[1:]:
                raise ContractError(f"a keyframe {list(picture.shape)} is not the clip's size {list(chunk.shape[1:])}")
            result[index - start] = picture if share == 1.0 else share * picture + (1 - share) * chunk[index - start]
        del chunk
        yield result
        del result  # not held while the next chunk is decoded
        start += count
