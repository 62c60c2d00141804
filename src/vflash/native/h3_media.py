"""`encode_mp4`: decoded tensors to an MP4, outside a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from attrs import asdict

from vflash.domain.delivery import AudioDelivery
from vflash.domain.fields import argument, to_path
from vflash.stages.audio_delivery import deliver_audio
from vflash_adapters.arguments import tensor_argument
from vflash_adapters.media.encoding import Encoding
from vflash_adapters.media.ffmpeg_file import FfmpegFileSink
from vflash_adapters.media.ffmpeg_pipe import FfmpegPipeSink
from vflash_ports.errors import MediaError
from vflash_ports.media import Clip, MediaSink

SINKS: dict[str, Callable[..., MediaSink]] = {"file": FfmpegFileSink, "pipe": FfmpegPipeSink}
CHUNK_FRAMES = 8


def encode_mp4(
    video: torch.Tensor,
    audio: torch.Tensor,
    output_path: Path | str,
    *,
    fps: int = 24,
    audio_sample_rate: int = 32000,
    preset: str = "medium",
    crf: int = 18,
    timeout_seconds: float = 600,
    audio_delivery_profile: str = "unchanged",
    video_input: str = "file",
    video_threads: int | None = None,
    video_encoder: str = "libx264",
) -> dict[str, Any]:
    """CPU video [1, 3, F, H, W] in 0..1 and audio [1, 2, N] in -1..1 -> an MP4 at `output_path`, which must not exist.

    N / rate and F / fps may differ by one sample. Returns what was measured on the written file. `MediaError` for
    what cannot be written, `DeliveryError` for an encoder that failed or ran out of time; nothing is left behind.
    """
    output = argument("output_path", to_path, output_path)
    profile = argument("audio_delivery_profile", AudioDelivery, audio_delivery_profile)
    if not isinstance(video_input, str) or video_input not in SINKS:
        raise MediaError(f"video_input {video_input!r} is not one of {', '.join(SINKS)}")
    _require_shapes(video, audio, fps, audio_sample_rate)
    encoding = Encoding(preset=preset, crf=crf, threads=video_threads, encoder=video_encoder, timeout_s=timeout_seconds)
    sink = SINKS[video_input](encoding=encoding)
    sink.check(output)
    waveform, audio_report = deliver_audio(
        lambda: audio[0],
        samples=audio.shape[2],
        sample_rate_hz=audio_sample_rate,
        profile=profile,
    )
    clip = Clip(
        width=video.shape[4],
        height=video.shape[3],
        frame_count=video.shape[2],
        fps=fps,
        frames=_chunks(video),
        waveform=waveform,
        sample_rate_hz=audio_sample_rate,
    )
    delivery = sink.write(clip, output)
    measured = asdict(delivery, recurse=False, filter=lambda field, _: field.name != "details")
    return {
        **measured,
        "path": str(delivery.path),
        "duration_seconds": delivery.frames / delivery.fps,
        "audio_sample_rate": delivery.sample_rate_hz,
        "audio_delivery": audio_report,
        **delivery.details,
    }


def _chunks(video: torch.Tensor) -> Iterator[torch.Tensor]:
    for start in range(0, video.shape[2], CHUNK_FRAMES):
        yield video[0, :, start : start + CHUNK_FRAMES].transpose(0, 1)


def _require_shapes(video: torch.Tensor, audio: torch.Tensor, fps: object, rate: object) -> None:
    tensor_argument("video", video)
    tensor_argument("audio", audio)
    if video.ndim != 5 or video.shape[:2] != (1, 3) or video.device.type != "cpu" or not video.is_floating_point():
        raise MediaError(f"video must be floating point [1, 3, F, H, W] on the CPU, not {_described(video)}")
    if audio.ndim != 3 or audio.shape[:2] != (1, 2) or audio.device.type != "cpu" or not audio.is_floating_point():
        raise MediaError(f"audio must be floating point [1, 2, N] on the CPU, not {_described(audio)}")
    for name, value in (("fps", fps), ("audio_sample_rate", rate)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise MediaError(f"{name} {value!r} must be a whole number above 0")


def _described(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
