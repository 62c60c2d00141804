"""How a clip is encoded: validated choices, and the FFmpeg arguments they become."""

from __future__ import annotations

import math
import sys
from enum import StrEnum
from fractions import Fraction
from pathlib import Path

from attrs import Attribute, field, frozen

from vflash_ports.errors import MediaError
from vflash_ports.media import Clip


class VideoEncoder(StrEnum):
    """H.264 encoders. Hardware is used only when it is named."""

    X264 = "libx264"
    NVENC = "h264_nvenc"


# x264's nine presets, and the NVENC preset of about the same effort.
NVENC_PRESETS = {
    "ultrafast": "p1",
    "superfast": "p1",
    "veryfast": "p2",
    "faster": "p3",
    "fast": "p3",
    "medium": "p4",
    "slow": "p5",
    "slower": "p6",
    "veryslow": "p7",
}

# swscale's exact paths: BT.709 coefficients, limited range, the same bytes on every CPU; then the frames carry the
# tags, because newer FFmpeg takes them from the frames and older from the encoder.
COLOUR_FILTER = (
    "scale=out_color_matrix=bt709:out_range=tv:flags=bicubic+accurate_rnd+full_chroma_int+bitexact,"
    "format=yuv420p,"
    "setparams=range=tv:color_primaries=bt709:color_trc=bt709:colorspace=bt709"
)
COLOUR_TAGS = ("-color_range", "tv", "-color_primaries", "bt709", "-color_trc", "bt709", "-colorspace", "bt709")
AUDIO_BIT_RATE = "192k"
MP4_MOVIE_TIMESCALE = 1000  # FFmpeg's default


def _valid_preset(_: Encoding, __: Attribute[str], value: object) -> None:
    if not isinstance(value, str) or value not in NVENC_PRESETS:
        raise MediaError(f"preset {value!r} is not one of {', '.join(NVENC_PRESETS)}")


def _valid_crf(_: Encoding, __: Attribute[int], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 51:
        raise MediaError(f"crf {value!r} must be a whole number from 0 to 51")


def _valid_threads(_: Encoding, __: Attribute[int | None], value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 256:
        raise MediaError(f"video threads {value!r} must be a whole number from 1 to 256, or None for FFmpeg's choice")


def _valid_timeout(_: Encoding, __: Attribute[float], value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise MediaError(f"encoding timeout {value!r} must be a finite number of seconds above 0")


def _encoder(value: object) -> VideoEncoder:
    try:
        return VideoEncoder(str(value))
    except ValueError as error:
        raise MediaError(f"video encoder {value!r} is not one of {', '.join(VideoEncoder)}") from error


@frozen(kw_only=True)
class Encoding:
    """`threads` bounds the H.264 encoder alone, not filters or audio; None leaves it to FFmpeg. `timeout_s` bounds
    the time spent in FFmpeg and in feeding it, not the time the decoder takes to make frames."""

    preset: str = field(default="medium", validator=_valid_preset)
    crf: int = field(default=18, validator=_valid_crf)
    threads: int | None = field(default=None, validator=_valid_threads)
    encoder: VideoEncoder = field(default=VideoEncoder.X264, converter=_encoder)
    timeout_s: float = field(default=600.0, validator=_valid_timeout)


def mp4_arguments(encoding: Encoding, clip: Clip, *, video: str, audio: Path, output: Path) -> list[str]:
    """Everything after the FFmpeg program: raw RGB from `video` (a path or `pipe:0`), PCM16 from `audio`, to `output`.

    The bit-exact flags leave out versions and dates, so that equal settings on one machine give equal bytes.
    """
    pictures = ["-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", f"{clip.width}x{clip.height}"]
    pictures += ["-framerate", str(clip.fps), "-i", video]
    sound = ["-f", "s16le", "-ar", str(clip.sample_rate_hz), "-ac", "2", "-i", str(audio)]
    return [
        *("-hide_banner", "-nostdin", "-loglevel", "error", "-n"),
        *pictures,
        *sound,
        *("-map", "0:v:0", "-map", "1:a:0", "-vf", COLOUR_FILTER),
        *_video_codec(encoding),
        *COLOUR_TAGS,
        *("-c:a", "aac", "-b:a", AUDIO_BIT_RATE),
        *("-fflags", "+bitexact", "-flags:v", "+bitexact", "-flags:a", "+bitexact", "-map_metadata", "-1"),
        *("-movflags", "+faststart"),
        *_movie_clock(clip),
        *("-f", "mp4", str(output)),
    ]


def _video_codec(encoding: Encoding) -> list[str]:
    threads = [] if encoding.threads is None else ["-threads:v", str(encoding.threads)]
    if encoding.encoder is VideoEncoder.NVENC:
        rate = ["-rc", "vbr", "-cq", str(encoding.crf), "-b:v", "0"]
        return ["-c:v", encoding.encoder.value, "-preset", NVENC_PRESETS[encoding.preset], *rate, *threads]
    return ["-c:v", encoding.encoder.value, "-preset", encoding.preset, "-crf", str(encoding.crf), *threads]


def _movie_clock(clip: Clip) -> list[str]:
    """MP4 edit lists count in the movie's clock: milliseconds unless those would round the duration."""
    duration_s = Fraction(clip.frame_count, clip.fps)
    if (duration_s * MP4_MOVIE_TIMESCALE).denominator == 1:
        return []
    return ["-movie_timescale", str(math.lcm(clip.fps, clip.sample_rate_hz))]
