"""Opening a stranger's media file: one file, known containers, checked sizes, every failure a `MediaError`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vflash_adapters.media.reference_limits import ReferenceLimits, require_file
from vflash_ports.errors import MediaError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.stream import Stream
    from av.video.stream import VideoStream

# Playlists, image sequences and scripts are left out: they name other files.
CONTAINERS = "mov,matroska,webm,avi,mpegts,mpeg,flv,wav,w64,mp3,flac,ogg,aac,aiff,caf"


@contextmanager
def open_media(path: Path, limits: ReferenceLimits, *, what: str) -> Iterator[InputContainer]:
    """The opened container; messages call the file `what`. All that libav raises inside the scope is a `MediaError`."""
    import av

    require_file(path, limits.media_bytes, what=what)
    options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file", "max_pixels": str(_coded(limits))}
    try:
        with av.open(str(path.absolute()), options=options, metadata_errors="replace") as container:
            _require_duration(container, path, limits, what)
            yield container
    except MediaError:
        raise
    except (av.FFmpegError, ValueError, OverflowError, EOFError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or error  # libav's words without its number and the path again
        raise MediaError(f"{what} {path} cannot be read as video or sound: {reason}") from error


def moving_streams(container: InputContainer) -> list[VideoStream]:
    """The video streams that are not cover pictures."""
    from av.stream import Disposition

    return [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]


def require_codec(stream: Stream, path: Path, *, what: str) -> None:
    """`MediaError` for a stream whose codec libav does not know: PyAV then gives it no context."""
    if stream.codec_context is None:
        raise MediaError(f"{what} {path} holds a {stream.type} stream in an unknown codec: re-encode it")


class DecodeClock:
    """Stops a file that decodes without end."""

    def __init__(self, path: Path, limits: ReferenceLimits, *, what: str) -> None:
        self._named = f"{what} {path}"
        self._limit_s = limits.decode_s
        self._started = time.monotonic()

    def tick(self) -> None:
        if time.monotonic() - self._started > self._limit_s:
            raise MediaError(f"{self._named} took over {self._limit_s:g} s to decode: shorten or re-encode it")


def _coded(limits: ReferenceLimits) -> int:
    """Decoders count whole macroblocks: allow the rounding of each side, not more."""
    return limits.frame_pixels + limits.frame_pixels // 8


def _require_duration(container: InputContainer, path: Path, limits: ReferenceLimits, what: str) -> None:
    import av

    seconds = (container.duration or 0) / av.time_base
    if seconds > limits.duration_s:
        raise MediaError(f"{what} {path} lasts {seconds:.0f} s, more than {limits.duration_s:.0f}: cut it first")
