"""`vflash inspect`: what a clip holds, measured by decoding all of it once, frame by frame."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from vflash_adapters.media.contact_sheet import sheet_frames, thumbnail, write_contact_sheet
from vflash_adapters.media.frame_statistics import FrameStatistics
from vflash_adapters.media.open_media import DecodeClock, moving_streams, open_media, require_codec
from vflash_adapters.media.reference_limits import ReferenceLimits
from vflash_adapters.media.scratch import check_target
from vflash_ports.errors import MediaError

if TYPE_CHECKING:
    import torch
    from av.container import InputContainer

LIMITS = ReferenceLimits(duration_s=600.0, decode_s=600.0)
CLIP_FRAMES = 17  # frames that the released video VAE decodes as one clip
CLIPPED_AT = 32767 / 32768
# (waveform float32 [channels, n], rate in Hz) -> (integrated LUFS, true peak dBTP), None for silence
LoudnessMeter = Callable[["torch.Tensor", int], tuple[float | None, float | None]]


@frozen(kw_only=True, eq=False)
class Sound:
    """float32 [channels, n], as long as it is presented: priming and padding are left out."""

    waveform: NDArray[np.float32]
    sample_rate_hz: int


def inspect_file(
    path: Path, *, meter: LoudnessMeter, contact_sheet: Path | None = None, clip_frames: int = CLIP_FRAMES
) -> dict[str, Any]:
    """Everything as plain JSON values. `contact_sheet` names a PNG to write, which must not exist.

    `MediaError` for a file that cannot be decoded, without video, or longer than ten minutes.
    """
    if clip_frames < 1:
        raise MediaError(f"clip frames {clip_frames} must be at least 1")
    if contact_sheet is not None:
        check_target(contact_sheet, ".png")
    shown = set(sheet_frames(_frame_count(path))) if contact_sheet is not None else set()
    statistics, thumbnails, container = _look(path, clip_frames, shown)
    sound = _listen(path)
    if contact_sheet is not None:
        waveform = sound.waveform if sound is not None else np.zeros((1, 0), dtype=np.float32)
        fps = container["video"]["fps"]
        write_contact_sheet(contact_sheet, thumbnails, fps=fps, waveform=waveform)
    return {
        "path": str(path),
        **container,
        "frames": len(statistics.means),
        **statistics.report(),
        "sound": None if sound is None else _sound_report(sound, meter),
    }


def _frame_count(path: Path) -> int:
    with open_media(path, LIMITS, what="clip") as container:
        video = _only_video(container, path)
        return sum(1 for packet in container.demux(video) if packet.size and not packet.is_discard)


def _look(
    path: Path, clip_frames: int, shown: set[int]
) -> tuple[FrameStatistics, dict[int, NDArray[np.uint8]], dict[str, Any]]:
    statistics, thumbnails = FrameStatistics(clip_frames), {}
    clock = DecodeClock(path, LIMITS, what="clip")
    with open_media(path, LIMITS, what="clip") as container:
        video = _only_video(container, path)
        described = _described(container, path)
        for frame in container.decode(video):
            clock.tick()
            pixels: NDArray[np.uint8] = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
            if len(statistics.means) in shown:
                thumbnails[len(statistics.means)] = thumbnail(pixels)
            statistics.add(pixels)
    if not statistics.means:
        raise MediaError(f"clip {path} holds no frames that can be decoded")
    return statistics, thumbnails, described


def _only_video(container: InputContainer, path: Path) -> Any:
    streams = moving_streams(container)
    if not streams:
        raise MediaError(f"clip {path} holds no video stream")
    require_codec(streams[0], path, what="clip")
    width, height = streams[0].codec_context.width, streams[0].codec_context.height
    if not 1 <= width * height <= LIMITS.frame_pixels:
        raise MediaError(f"clip {path} is {width}x{height}, outside 1 to {LIMITS.frame_pixels} pixels")
    return streams[0]


def _described(container: InputContainer, path: Path) -> dict[str, Any]:
    video = _only_video(container, path)
    codec = video.codec_context
    return {
        "streams": [{"type": stream.type, "codec": stream.codec_context.name} for stream in _coded(container)],
        "video": {
            "codec": codec.name,
            "width": codec.width,
            "height": codec.height,
            "fps": float(video.average_rate or video.guessed_rate or 0) or 1.0,
            "pixel_format": codec.pix_fmt,
            "seconds": _seconds(video.duration, video.time_base),
        },
    }


def _coded(container: InputContainer) -> list[Any]:
    known = [stream for stream in container.streams if stream.codec_context is not None]
    return [stream for stream in known if stream.type in ("video", "audio")]


def _seconds(ticks: int | None, time_base: Fraction | None) -> float | None:
    return float(ticks * time_base) if ticks is not None and time_base is not None else None


def _listen(path: Path) -> Sound | None:
    from av.audio.resampler import AudioResampler

    clock = DecodeClock(path, LIMITS, what="clip")
    with open_media(path, LIMITS, what="clip") as container:
        if not container.streams.audio:
            return None
        stream = container.streams.audio[0]
        require_codec(stream, path, what="clip")
        planar = AudioResampler(format="fltp", layout=stream.layout, rate=stream.rate)
        parts: list[NDArray[Any]] = []
        for frame in container.decode(stream):
            clock.tick()
            parts += [part.to_ndarray() for part in planar.resample(frame)]
        parts += [part.to_ndarray() for part in planar.resample(None)]
        if not parts:
            return None
        waveform = np.concatenate(parts, axis=1).astype(np.float32, copy=False)
        seconds = _seconds(stream.duration, stream.time_base)
        presented = waveform.shape[1] if seconds is None else min(waveform.shape[1], round(seconds * stream.rate))
        return Sound(waveform=waveform[:, :presented], sample_rate_hz=stream.rate)


def _sound_report(sound: Sound, meter: LoudnessMeter) -> dict[str, Any]:
    import torch

    channels, samples = sound.waveform.shape
    lufs, peak_dbtp = meter(torch.from_numpy(sound.waveform), sound.sample_rate_hz)
    return {
        "sample_rate_hz": sound.sample_rate_hz,
        "channels": channels,
        "samples": samples,
        "seconds": samples / sound.sample_rate_hz,
        "integrated_lufs": lufs,
        "true_peak_dbtp": peak_dbtp,
        "clipped_samples": int((np.abs(sound.waveform) >= CLIPPED_AT).sum()),
        "silent": bool(np.abs(sound.waveform).max(initial=0.0) == 0.0),
    }
