"""The packed sequence: text | conditions | target audio (left, right) | target video, on one rotary clock.

Every run of rows keeps its axes; torch expands them in `vflash.model.positions`. All arithmetic is float64 in the
order the released model uses, so the coordinates are bit-exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

from vflash.domain.duration import AUDIO_CHANNELS
from vflash_ports.attention import Segment, SegmentKind
from vflash_ports.errors import ContractError

FRAME_RESCALE = 5.0 / 3.0
FRAMES_PER_LATENT = (1, 4, 4, 4, 4)
SPATIAL_SCALE = 32


@frozen(kw_only=True)
class Keyframe:
    """A first or last frame on the target canvas: one latent frame anchored at an end of the clock."""

    last: bool


@frozen(kw_only=True)
class PictureBlock:
    """A reference picture: latent height and width."""

    height: int
    width: int


@frozen(kw_only=True)
class SoundBlock:
    """A standalone reference sound: latents a channel."""

    latents: int


@frozen(kw_only=True)
class VideoBlock:
    """A reference video: latent frames, height and width, and the latents a channel of its soundtrack (0: silent)."""

    frames: int
    height: int
    width: int
    sound_latents: int = 0


Condition = Keyframe | PictureBlock | SoundBlock | VideoBlock


@frozen(kw_only=True)
class PackedRun:
    """Rows [start, start + rows) and their coordinates.

    Visual runs are the row-major product of `t`, `h` and `w`. Sound runs repeat `t` for each channel, at height 0 and
    at the channel's `w`. Text runs have `t` alone.
    """

    kind: SegmentKind
    start: int
    t: tuple[float, ...]
    h: tuple[float, ...] = (0.0,)
    w: tuple[float, ...] = (0.0,)

    @property
    def rows(self) -> int:
        return len(self.t) * len(self.h) * len(self.w)

    @property
    def visual(self) -> bool:
        return self.kind in (SegmentKind.CONDITION_VIDEO, SegmentKind.TARGET_VIDEO)

    def segment(self) -> Segment:
        grid = (len(self.t), len(self.h), len(self.w)) if self.visual else None
        return Segment(kind=self.kind, start=self.start, rows=self.rows, grid=grid)


@frozen(kw_only=True)
class PackedLayout:
    """All runs in packed order."""

    runs: tuple[PackedRun, ...]

    @property
    def rows(self) -> int:
        return self.runs[-1].start + self.runs[-1].rows

    def rows_of(self, *kinds: SegmentKind) -> int:
        return sum(run.rows for run in self.runs if run.kind in kinds)


def pack(
    *,
    text_rows: int,
    conditions: Sequence[Condition],
    latent_frames: int,
    latent_height: int,
    latent_width: int,
    audio_latents: int,
    patch: tuple[int, int, int],
) -> PackedLayout:
    """Lay out one request. Latent sizes must be multiples of the (1, h, w) patch."""
    if text_rows < 1:
        raise ContractError("the text encoder gave no rows; the prompt must hold at least one token")
    packer = _Packer(patch)
    packer.add(SegmentKind.TEXT, tuple(float(i) for i in range(text_rows)))
    target = packer.axes(latent_height, latent_width)
    clock = float(text_rows)
    for condition in conditions:
        clock += packer.condition(condition, clock, target, latent_frames)
    packer.sound(SegmentKind.TARGET_AUDIO, audio_latents, clock, target[1])
    packer.add(SegmentKind.TARGET_VIDEO, latent_times(latent_frames, clock), *target)
    return PackedLayout(runs=tuple(packer.runs))


Axes = tuple[tuple[float, ...], tuple[float, ...]]


class _Packer:
    def __init__(self, patch: tuple[int, int, int]) -> None:
        self.patch = patch
        self.runs: list[PackedRun] = []
        self.cursor = 0

    def add(
        self, kind: SegmentKind, t: tuple[float, ...], h: tuple[float, ...] = (0.0,), w: tuple[float, ...] = (0.0,)
    ) -> None:
        run = PackedRun(kind=kind, start=self.cursor, t=t, h=h, w=w)
        self.runs.append(run)
        self.cursor += run.rows

    def axes(self, height: int, width: int) -> Axes:
        _, patch_h, patch_w = self.patch
        if height % patch_h or width % patch_w:
            raise ContractError(f"latents of {height}x{width} are not whole patches of {patch_h}x{patch_w}")
        root = math.sqrt(height * width)
        return spatial_axis(height, patch_h, root), spatial_axis(width, patch_w, root)

    def sound(self, kind: SegmentKind, latents: int, clock: float, width_axis: tuple[float, ...]) -> None:
        """Channel-major: the left block at the first width coordinate, the right block at the last."""
        times = tuple(clock + k for k in range(latents))
        for edge in (width_axis[0], width_axis[-1])[:AUDIO_CHANNELS]:
            self.add(kind, times, (0.0,), (edge,))

    def condition(self, block: Condition, clock: float, target: Axes, target_frames: int) -> float:
        """Add one conditioning block; returns how far it moves the clock."""
        if isinstance(block, Keyframe):
            time = clock + latent_span_pairwise(target_frames) - FRAME_RESCALE if block.last else clock
            self.add(SegmentKind.CONDITION_VIDEO, (time,), *target)
            return 0.0
        if isinstance(block, SoundBlock):
            self.sound(SegmentKind.CONDITION_AUDIO, block.latents, clock, target[1])
            return float(block.latents)
        axes = self.axes(block.height, block.width)
        if isinstance(block, PictureBlock):
            self.add(SegmentKind.CONDITION_VIDEO, (clock,), *axes)
            return 1.0
        if block.sound_latents:
            self.sound(SegmentKind.CONDITION_AUDIO, block.sound_latents, clock, axes[1])
        self.add(SegmentKind.CONDITION_VIDEO, latent_times(block.frames, clock), *axes)
        return max(float(block.sound_latents), sum(latent_spans(block.frames)))


def spatial_axis(dim: int, patch: int, root_area: float) -> tuple[float, ...]:
    """dim // patch coordinates centred on the unit interval, right end excluded, times 32."""
    ratio = dim / root_area
    left = (1.0 - ratio) / 2.0
    count = dim // patch
    step = ((left + ratio) - left) / count
    return tuple((k * step + left) * SPATIAL_SCALE for k in range(count))


def latent_spans(frames: int) -> tuple[float, ...]:
    """Rotary time of each latent frame: 5/3 * (1, 4, 4, 4, 4), repeating."""
    return tuple(FRAME_RESCALE * FRAMES_PER_LATENT[i % len(FRAMES_PER_LATENT)] for i in range(frames))


def latent_times(frames: int, clock: float) -> tuple[float, ...]:
    """Where each latent frame starts: clock + the running sum of the spans before it."""
    times, total = [], 0.0
    for span in latent_spans(frames):
        times.append(clock + total)
        total += span
    return tuple(times)


def latent_span_pairwise(frames: int) -> float:
    """The sum of all spans in pairwise order; its last bits differ from the running sum. Anchors the last keyframe."""
    return _pairwise(latent_spans(frames))


def _pairwise(values: Sequence[float]) -> float:
    """Eight interleaved accumulators up to 128 values, halves above: the order NumPy's float64 sum uses."""
    n = len(values)
    if n < 8:
        total = 0.0
        for value in values:
            total += value
        return total
    if n > 128:
        half = n // 2 - (n // 2) % 8
        return _pairwise(values[:half]) + _pairwise(values[half:])
    r = list(values[:8])
    whole = n - n % 8
    for start in range(8, whole, 8):
        r = [a + b for a, b in zip(r, values[start : start + 8], strict=True)]
    total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]))
    for value in values[whole:]:
        total += value
    return total
