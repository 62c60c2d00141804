"""The `file` sink: RGB goes to a temporary file first, then FFmpeg reads it. The default."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from attrs import field, frozen

from vflash_adapters.media.encoding import Encoding
from vflash_adapters.media.mp4 import EncodedClip, check_mp4, encode_and_publish
from vflash_adapters.media.quantise import FrameQuantiser
from vflash_ports.errors import DeliveryError
from vflash_ports.media import Clip, Delivery


@frozen(kw_only=True)
class FfmpegFileSink:
    """H.264 and AAC in an MP4. Needs width * height * 3 bytes a frame of free disk beside the output."""

    encoding: Encoding = field(factory=Encoding)
    ffmpeg: Path | None = None

    @property
    def name(self) -> str:
        return "file"

    def check(self, output: Path) -> None:
        check_mp4(output, self.encoding, self.ffmpeg)

    def write(self, clip: Clip, output: Path) -> Delivery:
        return encode_and_publish(clip, output, self.encoding, self.ffmpeg, video_input=self.name, feed=_through_file)


def _through_file(job: EncodedClip) -> None:
    pictures = job.scratch / "video.rgb"
    _require_space(job.clip, job.scratch)
    quantiser = FrameQuantiser(job.clip)
    try:
        with pictures.open("wb") as sink:
            for chunk in quantiser.chunks():
                sink.write(chunk.numpy().data.cast("B"))
    except OSError as error:
        raise DeliveryError(f"writing the temporary RGB file failed: {error.strerror}; {CURE}") from error
    complete = time.monotonic()
    with job.start(video=str(pictures), fed=False) as ffmpeg:
        ffmpeg.finish()
    job.record(quantiser, rgb_temporary_bytes=pictures.stat().st_size, frames_complete=complete)


CURE = "free space beside the output, or stream with the `pipe` video input"


def _require_space(clip: Clip, scratch: Path) -> None:
    needed = clip.width * clip.height * 3 * clip.frame_count
    free = shutil.disk_usage(scratch).free
    if free < needed:
        raise DeliveryError(f"{needed} bytes of temporary RGB do not fit in the {free} free bytes: {CURE}")
