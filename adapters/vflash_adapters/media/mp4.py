"""From a clip to a published MP4, whichever way the pictures reach FFmpeg."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vflash_adapters.media.encoding import Encoding, VideoEncoder, mp4_arguments
from vflash_adapters.media.ffmpeg_binary import find_ffmpeg, require_encoders, require_working
from vflash_adapters.media.ffmpeg_process import FfmpegProcess
from vflash_adapters.media.probe import Mp4Probe, probe_mp4, require_match
from vflash_adapters.media.quantise import FrameQuantiser, check_clip, pcm16, waveform_peak
from vflash_adapters.media.scratch import check_target, publish, scratch_beside
from vflash_ports.errors import DeliveryError
from vflash_ports.media import Clip, Delivery

AUDIO_ENCODER = "aac"


class EncodedClip:
    """One clip on its way to an MP4: its scratch folder, how to start FFmpeg on it, and what was measured."""

    def __init__(self, clip: Clip, encoding: Encoding, executable: Path, scratch: Path) -> None:
        self.clip = clip
        self.scratch = scratch
        self.details: dict[str, Any] = {}
        self.mp4 = scratch / "clip.mp4"
        self._encoding = encoding
        self._executable = executable
        self._audio = scratch / "audio.pcm"
        self._process: FfmpegProcess | None = None

    def write_audio(self) -> None:
        samples = pcm16(self.clip.waveform)
        try:
            self._audio.write_bytes(samples.numpy().data.cast("B"))
        except OSError as error:
            raise DeliveryError(f"writing the temporary sound failed: {error.strerror}; free space there") from error
        self.details["waveform_peak"] = waveform_peak(self.clip.waveform)

    def start(self, *, video: str, fed: bool) -> FfmpegProcess:
        """FFmpeg reading pictures from `video`: a path, or `pipe:0` and then `fed`."""
        arguments = mp4_arguments(self._encoding, self.clip, video=video, audio=self._audio, output=self.mp4)
        self._process = FfmpegProcess(self._executable, arguments, timeout_s=self._encoding.timeout_s, fed=fed)
        return self._process

    def record(self, quantiser: FrameQuantiser, *, rgb_temporary_bytes: int, frames_complete: float) -> None:
        """`frames_complete`: the monotonic clock when the last frame had come; what follows is the encoder's alone."""
        assert self._process is not None
        self.details |= {
            "rgb_temporary_bytes": rgb_temporary_bytes,
            "pixel_range": [quantiser.lowest, quantiser.highest],
            "ffmpeg_seconds": self._process.seconds,
            "seconds_after_last_frame": time.monotonic() - frames_complete,
        }


def check_mp4(output: Path, encoding: Encoding, ffmpeg: Path | None) -> None:
    """Refuse a target that cannot be published and an FFmpeg that cannot encode it, before any work."""
    check_target(output, ".mp4")
    executable = find_ffmpeg(ffmpeg)
    require_encoders(executable, encoding.encoder.value, AUDIO_ENCODER)
    if encoding.encoder is not VideoEncoder.X264:
        require_working(executable, encoding.encoder.value)


def encode_and_publish(
    clip: Clip,
    output: Path,
    encoding: Encoding,
    ffmpeg: Path | None,
    *,
    video_input: str,
    feed: Callable[[EncodedClip], None],
) -> Delivery:
    """Encode in a scratch folder, probe, publish. Any failure leaves nothing behind and nothing at `output`."""
    check_clip(clip)
    check_mp4(output, encoding, ffmpeg)
    started = time.monotonic()
    with scratch_beside(output) as scratch:
        job = EncodedClip(clip, encoding, find_ffmpeg(ffmpeg), scratch)
        job.write_audio()
        feed(job)
        found = probe_mp4(job.mp4)
        require_match(found, clip)
        size_bytes = job.mp4.stat().st_size
        publish(job.mp4, output)
    settings = {
        "video_input": video_input,
        "encoder": encoding.encoder.value,
        "preset": encoding.preset,
        "crf": encoding.crf,
        "video_threads": encoding.threads,
    }
    details = settings | job.details | {"seconds": time.monotonic() - started, "probe": found.as_dict()}
    return _delivery(output, found, size_bytes, details)


def _delivery(output: Path, found: Mp4Probe, size_bytes: int, details: dict[str, Any]) -> Delivery:
    return Delivery(
        path=output,
        frames=found.frames,
        width=found.width,
        height=found.height,
        fps=found.fps,
        sample_rate_hz=found.sample_rate_hz,
        audio_samples=found.audio_samples,
        size_bytes=size_bytes,
        details=details,
    )
