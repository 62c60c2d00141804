"""The packed layout as tensors: coordinates, modality tags, modulation roles, row ranges."""

from __future__ import annotations

from enum import IntEnum

import torch
from attrs import frozen

from vflash.domain.packing import PackedLayout, PackedRun
from vflash_ports.attention import SegmentKind

VIDEO_TAG, TEXT_TAG, AUDIO_TAG = 0, 1, 2
MODALITIES = 3


class Role(IntEnum):
    """Which (timestep, modality) a row is modulated by: one row of a block's modulation table each."""

    VIDEO = 0  # generated video, and vision rows inside the text
    TEXT = 1
    AUDIO = 2
    CONDITION_VIDEO = 3
    CONDITION_AUDIO = 4

    @property
    def tag(self) -> int:
        return (VIDEO_TAG, TEXT_TAG, AUDIO_TAG, VIDEO_TAG, AUDIO_TAG)[self]


_ROLE_OF = {
    SegmentKind.CONDITION_VIDEO: Role.CONDITION_VIDEO,
    SegmentKind.CONDITION_AUDIO: Role.CONDITION_AUDIO,
    SegmentKind.TARGET_AUDIO: Role.AUDIO,
    SegmentKind.TARGET_VIDEO: Role.VIDEO,
}


@frozen(kw_only=True, eq=False)
class PackedIndex:
    """`positions` [S, 3] float64 as (t, h, w); `roles` [S] int64; targets are the last rows: audio, then video."""

    positions: torch.Tensor
    roles: torch.Tensor
    text_rows: int
    condition_video: tuple[slice, ...]
    condition_audio: tuple[slice, ...]
    target_audio: slice
    target_video: slice


def index_rows(layout: PackedLayout, text_tags: torch.Tensor) -> PackedIndex:
    """`text_tags` [text rows] int64: 1 for text, 0 for the rows of a vision block."""
    positions = torch.cat([run_positions(run) for run in layout.runs])
    roles = torch.empty(layout.rows, dtype=torch.int64)
    slices: dict[SegmentKind, list[slice]] = {kind: [] for kind in SegmentKind}
    for run in layout.runs:
        rows = slice(run.start, run.start + run.rows)
        slices[run.kind].append(rows)
        roles[rows] = text_roles(text_tags) if run.kind is SegmentKind.TEXT else int(_ROLE_OF[run.kind])
    audio, video = slices[SegmentKind.TARGET_AUDIO], slices[SegmentKind.TARGET_VIDEO][0]
    return PackedIndex(
        positions=positions,
        roles=roles,
        text_rows=layout.runs[0].rows,
        condition_video=tuple(slices[SegmentKind.CONDITION_VIDEO]),
        condition_audio=tuple(slices[SegmentKind.CONDITION_AUDIO]),
        target_audio=slice(audio[0].start, audio[-1].stop),
        target_video=video,
    )


def run_positions(run: PackedRun) -> torch.Tensor:
    """[rows, 3] float64: the row-major product of the run's axes."""
    t, h, w = (torch.tensor(axis, dtype=torch.float64) for axis in (run.t, run.h, run.w))
    return torch.cartesian_prod(t, h, w).reshape(-1, 3)


def text_roles(text_tags: torch.Tensor) -> torch.Tensor:
    return torch.where(text_tags == TEXT_TAG, int(Role.TEXT), int(Role.VIDEO))
