"""The `pipe` sink: RGB is fed to FFmpeg while the decoder still runs. No RGB file; the same MP4 as `file`."""

from __future__ import annotations

import time
from pathlib import Path

from attrs import field, frozen

from vflash_adapters.media.encoding import Encoding
from vflash_adapters.media.ffmpeg_feeder import FfmpegFeeder
from vflash_adapters.media.mp4 import EncodedClip, check_mp4, encode_and_publish
from vflash_adapters.media.quantise import FrameQuantiser
from vflash_ports.media import Clip, Delivery


@frozen(kw_only=True)
class FfmpegPipeSink:
    """H.264 and AAC in an MP4. Holds at most 32 quantised frames besides what the decoder hands over."""

    encoding: Encoding = field(factory=Encoding)
    ffmpeg: Path | None = None

    @property
    def name(self) -> str:
        return "pipe"

    def check(self, output: Path) -> None:
        check_mp4(output, self.encoding, self.ffmpeg)

    def write(self, clip: Clip, output: Path) -> Delivery:
        return encode_and_publish(clip, output, self.encoding, self.ffmpeg, video_input=self.name, feed=_through_pipe)


def _through_pipe(job: EncodedClip) -> None:
    quantiser = FrameQuantiser(job.clip)
    with job.start(video="pipe:0", fed=True) as ffmpeg, FfmpegFeeder(ffmpeg) as feeder:
        for chunk in quantiser.chunks():
            feeder.give(chunk.numpy())
        complete = time.monotonic()
        feeder.finish()
    job.record(quantiser, rgb_temporary_bytes=0, frames_complete=complete)
