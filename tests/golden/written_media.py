"""Oracle media as files, without loss: what the engine reads back is what the reference was given."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import torch
from oracle import OracleRequest, Picture, Sound, Video
from PIL import Image

from vflash.domain.request import Reference, ReferenceKind, VideoRequest

RATE_HZ = 32_000


def request_from_files(asked: OracleRequest, folder: Path, *, save_latents: Path | None = None) -> VideoRequest:
    """The same request, its pictures, videos and sounds written into `folder`."""
    frames = {"first": asked.first, "last": asked.last}
    return VideoRequest(
        prompt=asked.prompt,
        width=asked.width,
        height=asked.height,
        seed=asked.seed,
        steps=asked.evaluations,
        **{
            f"{name}_frame": write_picture(pixels, folder / f"{name}.png")
            for name, pixels in frames.items()
            if pixels is not None
        },
        references=[write_reference(item, folder / str(number)) for number, item in enumerate(asked.references)],
        save_latents=save_latents,
    )


def write_reference(item: Picture | Video | Sound, stem: Path) -> Reference:
    if isinstance(item, Picture):
        return Reference(kind=ReferenceKind.PICTURE, path=write_picture(item.pixels, stem.with_suffix(".png")))
    if isinstance(item, Sound):
        return Reference(kind=ReferenceKind.AUDIO, path=write_sound(item.waveform, stem.with_suffix(".wav")))
    return Reference(kind=ReferenceKind.VIDEO, path=write_video(item, stem.with_suffix(".mov")))


def write_picture(pixels: torch.Tensor, path: Path) -> Path:
    """uint8 [H, W, 3] as PNG."""
    Image.fromarray(pixels.numpy()).save(path)
    return path


def write_sound(waveform: torch.Tensor, path: Path) -> Path:
    """float32 [channels, n] as float samples."""
    with av.open(str(path), "w") as container:
        _mux_sound(container, _sound_stream(container, waveform), waveform)
    return path


def write_video(item: Video, path: Path) -> Path:
    """PNG frames at their rate, and float samples, in a MOV."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("png", rate=Fraction(item.fps).limit_denominator(1001))
        stream.width, stream.height, stream.pix_fmt = item.frames.shape[2], item.frames.shape[1], "rgb24"
        heard = None if item.waveform is None else _sound_stream(container, item.waveform)
        for pixels in item.frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels.numpy(), format="rgb24")))
        container.mux(stream.encode(None))
        if heard is not None:
            _mux_sound(container, heard, item.waveform)
    return path


def _sound_stream(container: av.container.OutputContainer, waveform: torch.Tensor) -> av.AudioStream:
    return container.add_stream("pcm_f32le", rate=RATE_HZ, layout="mono" if len(waveform) == 1 else "stereo")


def _mux_sound(container: av.container.OutputContainer, stream: av.AudioStream, waveform: torch.Tensor) -> None:
    interleaved = np.ascontiguousarray(waveform.numpy().T.reshape(1, -1))
    frame = av.AudioFrame.from_ndarray(interleaved, format="flt", layout=stream.layout.name)
    frame.sample_rate, frame.pts, frame.time_base = RATE_HZ, 0, Fraction(1, RATE_HZ)
    container.mux(stream.encode(frame))
    container.mux(stream.encode(None))
