"""What a written MP4 holds, read back with PyAV: streams, sizes, exact counts, tags. Nothing is decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from vflash_ports.errors import DeliveryError
from vflash_ports.media import Clip

BT709 = 1
LIMITED_RANGE = 1


@frozen(kw_only=True)
class Mp4Probe:
    """`frames` counts the video packets; `audio_samples` is the presented length: the edit list hides AAC priming."""

    video_codec: str
    audio_codec: str
    width: int
    height: int
    fps: float
    frames: int
    pixel_format: str
    colour_range: int
    colour_primaries: int
    colour_transfer: int
    colour_matrix: int
    sample_rate_hz: int
    audio_channels: int
    audio_samples: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def probe_mp4(path: Path) -> Mp4Probe:
    """Demux `path` once. `DeliveryError` unless it holds exactly one video and one audio stream that can be read."""
    import av

    try:
        with av.open(str(path)) as container:
            kinds = [stream.type for stream in container.streams]
            if sorted(kinds) != ["audio", "video"]:
                raise DeliveryError(f"{path.name} holds streams {kinds}, not one video and one audio")
            video, audio = container.streams.video[0], container.streams.audio[0]
            frames = sum(1 for packet in container.demux(video) if packet.size)
            codec = video.codec_context
            return Mp4Probe(
                video_codec=codec.name,
                audio_codec=audio.codec_context.name,
                width=codec.width,
                height=codec.height,
                fps=float(video.average_rate or 0),
                frames=frames,
                pixel_format=codec.pix_fmt or "",
                colour_range=int(codec.color_range),
                colour_primaries=int(codec.color_primaries),
                colour_transfer=int(codec.color_trc),
                colour_matrix=int(codec.colorspace),
                sample_rate_hz=audio.rate,
                audio_channels=audio.channels,
                audio_samples=round((audio.duration or 0) * (audio.time_base or 0) * audio.rate),
            )
    except av.FFmpegError as error:
        raise DeliveryError(f"{path.name} cannot be read back: {error}") from error


def require_match(found: Mp4Probe, clip: Clip) -> None:
    """`DeliveryError` naming the first thing in which the written file is not exactly the clip."""
    expected = {
        "video_codec": "h264",
        "audio_codec": "aac",
        "width": clip.width,
        "height": clip.height,
        "fps": float(clip.fps),
        "frames": clip.frame_count,
        "pixel_format": "yuv420p",
        "colour_range": LIMITED_RANGE,
        "colour_primaries": BT709,
        "colour_transfer": BT709,
        "colour_matrix": BT709,
        "sample_rate_hz": clip.sample_rate_hz,
        "audio_channels": 2,
        "audio_samples": clip.waveform.shape[1],
    }
    for name, value in expected.items():
        if getattr(found, name) != value:
            raise DeliveryError(f"the written file has {name} {getattr(found, name)}, not {value}: nothing published")
