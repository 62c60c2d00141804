"""An MP4 as arrays, through PyAV: what a viewer sees and hears, on one clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from vflash_ports.errors import MediaError

if TYPE_CHECKING:
    from av.container import InputContainer

MAX_SECONDS = 20
MAX_PIXELS = 2048 * 2048


@frozen(kw_only=True, eq=False)
class PlayedClip:
    """`frames` uint8 RGB [F, H, W, 3] at `fps`; `waveform` float32 [2, n] at `sample_rate_hz`; both start at 0 s."""

    frames: NDArray[np.uint8]
    fps: float
    waveform: NDArray[np.float32]
    sample_rate_hz: int


def read_clip(path: Path) -> PlayedClip:
    """Decode the whole file. `MediaError` unless it holds one video and one sound of at most 20 s."""
    import av

    if not path.is_file():
        raise MediaError(f"{path} does not exist; give the MP4 to judge")
    try:
        with av.open(str(path)) as container:
            _check(path, container)
            fps = float(container.streams.video[0].average_rate or 0)
            rate = container.streams.audio[0].rate
            frames, waveform = _decode(container, rate)
    except av.FFmpegError as error:
        raise MediaError(f"{path} cannot be decoded: {error}") from error
    if not frames or fps <= 0:
        raise MediaError(f"{path} holds no video frames")
    return PlayedClip(frames=np.stack(frames), fps=fps, waveform=waveform, sample_rate_hz=rate)


def _check(path: Path, container: InputContainer) -> None:
    video, audio = container.streams.video, container.streams.audio
    if len(video) != 1 or len(audio) != 1:
        raise MediaError(f"{path} holds {len(video)} video and {len(audio)} sound streams; the judge wants one of each")
    if video[0].width * video[0].height > MAX_PIXELS:
        raise MediaError(f"{path} is {video[0].width}x{video[0].height}; the judge reads at most {MAX_PIXELS} pixels")
    if (container.duration or 0) / 1e6 > MAX_SECONDS:
        raise MediaError(f"{path} lasts longer than {MAX_SECONDS} s; cut it before judging")


def _decode(container: InputContainer, rate: int) -> tuple[list[NDArray[np.uint8]], NDArray[np.float32]]:
    from av.audio.frame import AudioFrame
    from av.audio.resampler import AudioResampler
    from av.video.frame import VideoFrame

    frames: list[NDArray[np.uint8]] = []
    sound: list[NDArray[np.float32]] = []
    resampler = AudioResampler(format="fltp", layout="stereo", rate=rate)
    for frame in container.decode(video=0, audio=0):
        if isinstance(frame, VideoFrame):
            frames.append(frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False))
        elif isinstance(frame, AudioFrame):
            sound.extend(part.to_ndarray().astype(np.float32, copy=False) for part in resampler.resample(frame))
    return frames, np.concatenate(sound, axis=1) if sound else np.zeros((2, 0), np.float32)
