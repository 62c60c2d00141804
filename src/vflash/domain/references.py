"""Reference videos: the frames the text encoder sees, and the labels of their vision blocks."""

from __future__ import annotations

from attrs import frozen

from vflash.domain.duration import FPS
from vflash_ports.errors import MediaError

SAMPLE_FPS = 2
PAIR = 2
MIN_FRAMES = 13
"""At 24 fps: the first frame and one half a second later."""


@frozen(kw_only=True)
class SampledFrames:
    """`indices` into the 24 fps frames; `pair_seconds`, one a pair, an odd last frame being paired with itself."""

    indices: tuple[int, ...]
    pair_seconds: tuple[float, ...]


def sample_frames(frame_count: int, *, what: str) -> SampledFrames:
    """Two frames a second, merged in pairs, each pair labelled with its mean time."""
    if frame_count < MIN_FRAMES:
        raise MediaError(
            f"{what} has {frame_count} frames at {FPS} fps; a reference video needs at least {MIN_FRAMES} "
            f"({MIN_FRAMES / FPS:.2f} s)"
        )
    stride = FPS // SAMPLE_FPS
    indices = list(range(0, frame_count, stride))
    times = [k / SAMPLE_FPS for k in range(len(indices))]
    if len(indices) % PAIR:
        times.append(times[-1])
    pairs = tuple((times[k] + times[k + 1]) / 2 for k in range(0, len(times), PAIR))
    return SampledFrames(indices=tuple(indices), pair_seconds=pairs)
