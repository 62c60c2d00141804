"""Reference videos: upright RGB frames on the 24 fps clock, sized while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from vflash_adapters.media.frame_clock import SlotOf, frame_clock
from vflash_adapters.media.open_media import DecodeClock, moving_streams, open_media, require_codec
from vflash_adapters.media.picture_fit import fit_picture
from vflash_adapters.media.reference_limits import ReferenceLimits
from vflash_ports.errors import MediaError
from vflash_ports.media import PictureFit

if TYPE_CHECKING:
    import av
    import torch
    from av.container import InputContainer
    from av.video.stream import VideoStream

SizeRule = Callable[[int, int], tuple[int, int]]
MAX_TILT_DEGREES = 1.0


def read_frames(
    path: Path, *, fps: int, max_frames: int, size: SizeRule | None, limits: ReferenceLimits
) -> torch.Tensor:
    """uint8 RGB [F, H, W, 3], F <= max_frames. `MediaError` names what is wrong with the file."""
    slot_of = _clock(path, fps, (max_frames + 1) / fps, limits)
    with open_media(path, limits, what="video") as container:
        stream = _video_stream(container, path, limits)
        return _collect(
            _held(container, stream, slot_of, DecodeClock(path, limits, what="video")), path, max_frames, size, limits
        )


def _clock(path: Path, fps: int, needed_s: float, limits: ReferenceLimits) -> SlotOf:
    """Timestamps are read from the packets, without decoding, as far as frames are needed."""
    with open_media(path, limits, what="video") as container:
        stream = _video_stream(container, path, limits)
        tick = stream.time_base or Fraction(0)
        times: list[Fraction] | None = []
        clock = DecodeClock(path, limits, what="video")
        for packet in container.demux(stream):
            clock.tick()
            if not packet.size or packet.is_discard:
                continue
            if packet.pts is None or times is None:
                times = None  # no timestamps to go by
                break
            times.append(packet.pts * tick)
            if times[-1] - times[0] > needed_s + 1:
                break
        slot_of = frame_clock(times, stream.average_rate or stream.guessed_rate, fps)
    if slot_of is None:
        raise MediaError(f"video {path} has neither a frame rate nor timestamps: re-encode it")
    return slot_of


def _video_stream(container: InputContainer, path: Path, limits: ReferenceLimits) -> VideoStream:
    streams = moving_streams(container)
    if not streams:
        raise MediaError(f"video {path} holds no video stream")
    stream = streams[0]
    require_codec(stream, path, what="video")
    width, height = stream.codec_context.width, stream.codec_context.height
    if width < 1 or height < 1 or width * height > limits.frame_pixels:
        raise MediaError(f"video {path} is {width}x{height}, outside 1 to {limits.frame_pixels} pixels: scale it down")
    if (stream.sample_aspect_ratio or 1) != 1:
        raise MediaError(
            f"video {path} has pixels of {stream.sample_aspect_ratio}, not square: re-encode it to square pixels"
        )
    stream.codec_context.options = {"max_pixels": str(limits.frame_pixels + limits.frame_pixels // 8)}
    return stream


def _held(
    container: InputContainer, stream: VideoStream, slot_of: SlotOf, clock: DecodeClock
) -> Iterator[tuple[av.VideoFrame, int]]:
    """Each source frame with the number of slots it is held for (0: dropped)."""
    before: av.VideoFrame | None = None
    start, end, index = 0, 0, 0
    for frame in container.decode(stream):
        clock.tick()
        time = _time(frame, 0)
        slot = max(start, slot_of(index, time))
        if before is not None:
            yield before, slot - start
        before, start, index = frame, slot, index + 1
        end = slot_of(index, _time(frame, frame.duration or _typical_duration(stream)))
    if before is not None:
        yield before, max(end - start, 0)


def _time(frame: av.VideoFrame, later_ticks: int) -> Fraction | None:
    if frame.pts is None or frame.time_base is None:
        return None
    return (frame.pts + later_ticks) * frame.time_base


def _typical_duration(stream: VideoStream) -> int:
    if not stream.average_rate or not stream.time_base:
        return 1
    return round(1 / (stream.average_rate * stream.time_base))


def _collect(
    held: Iterator[tuple[av.VideoFrame, int]],
    path: Path,
    max_frames: int,
    size: SizeRule | None,
    limits: ReferenceLimits,
) -> torch.Tensor:
    frames: torch.Tensor | None = None
    count = 0
    for frame, slots in _of_one_size(held, path):
        if slots == 0:
            continue
        pixels = _upright(frame, path)
        if frames is None:
            width, height = (size or _as_it_is)(pixels.shape[1], pixels.shape[0])
            frames = _room(path, max_frames, width, height, limits)
        until = min(count + slots, max_frames)
        frames[count:until] = fit_picture(pixels, frames.shape[2], frames.shape[1], PictureFit.STRETCH)
        count = until
        if count == max_frames:
            break
    if frames is None:
        raise MediaError(f"video {path} holds no frames that can be decoded")
    return frames[:count]


def _of_one_size(held: Iterator[tuple[av.VideoFrame, int]], path: Path) -> Iterator[tuple[av.VideoFrame, int]]:
    first: tuple[int, int] | None = None
    for frame, slots in held:
        size = (frame.width, frame.height)
        first = first or size
        if size != first:
            raise MediaError(f"video {path} changes size from {first} to {size}: re-encode it")
        yield frame, slots


def _upright(frame: av.VideoFrame, path: Path) -> torch.Tensor:
    """Turned counterclockwise by the display matrix's angle, as FFmpeg and players show it."""
    import torch

    turns = round(frame.rotation / 90)
    if abs(frame.rotation - 90 * turns) > MAX_TILT_DEGREES:
        raise MediaError(f"video {path} is rotated by {frame.rotation:g} degrees: only right angles are read")
    pixels = torch.from_numpy(frame.to_ndarray(format="rgb24"))
    return torch.rot90(pixels, k=turns % 4, dims=(0, 1)).contiguous()


def _room(path: Path, frames: int, width: int, height: int, limits: ReferenceLimits) -> torch.Tensor:
    import torch

    needed = frames * width * height * 3
    if needed > limits.clip_bytes:
        raise MediaError(f"video {path} would take {needed} bytes in memory, over {limits.clip_bytes}: scale it down")
    return torch.empty((frames, height, width, 3), dtype=torch.uint8)


def _as_it_is(width: int, height: int) -> tuple[int, int]:
    return width, height
