"""The `frames-dir` sink: a folder of PNG frames and one WAV, lossless, for tests and for people who edit."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from vflash_adapters.media.quantise import FrameQuantiser, check_clip, pcm16, waveform_peak
from vflash_adapters.media.scratch import check_target, publish_folder, scratch_beside, sync
from vflash_ports.errors import DeliveryError
from vflash_ports.media import Clip, Delivery

if TYPE_CHECKING:
    import torch

AUDIO_NAME = "audio.wav"
FRAME_NAME = "frame-{index:05d}.png"
PNG_COMPRESSION = 1  # lossless at every level; this one keeps up with a decoder


@frozen(kw_only=True)
class FramesDirSink:
    """`output` becomes a folder: `frame-00000.png` and on, and `audio.wav` (PCM16). Linux: it needs `renameat2`."""

    @property
    def name(self) -> str:
        return "frames-dir"

    def check(self, output: Path) -> None:
        check_target(output, "")

    def write(self, clip: Clip, output: Path) -> Delivery:
        check_clip(clip)
        self.check(output)
        with scratch_beside(output) as scratch:
            folder = scratch / "clip"
            quantiser = FrameQuantiser(clip)
            try:
                folder.mkdir(mode=0o755)
                _write_sound(clip, folder / AUDIO_NAME)
                _write_frames(quantiser, folder)
            except OSError as error:
                raise DeliveryError(f"writing frames beside {output} failed: {error.strerror}; free space") from error
            delivery = _measured(clip, folder, output, quantiser)
            publish_folder(folder, output)
        return delivery


def _write_sound(clip: Clip, path: Path) -> None:
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(clip.sample_rate_hz)
        sound.writeframes(pcm16(clip.waveform).numpy().astype("<i2").tobytes())
    sync(path)


def _write_frames(quantiser: FrameQuantiser, folder: Path) -> None:
    index = 0
    for chunk in quantiser.chunks():
        for pixels in chunk:
            _write_frame(pixels, folder / FRAME_NAME.format(index=index))
            index += 1


def _write_frame(pixels: torch.Tensor, path: Path) -> None:
    from PIL import Image

    Image.fromarray(pixels.numpy()).save(path, compress_level=PNG_COMPRESSION)
    sync(path)


def _measured(clip: Clip, folder: Path, output: Path, quantiser: FrameQuantiser) -> Delivery:
    """Counts and sizes as they stand in the folder."""
    from PIL import Image

    pictures = sorted(folder.glob("frame-*.png"))
    with Image.open(pictures[0]) as first:
        width, height = first.size
    with wave.open(str(folder / AUDIO_NAME), "rb") as sound:
        samples, rate_hz = sound.getnframes(), sound.getframerate()
    found = (len(pictures), width, height, samples, rate_hz)
    planned = (clip.frame_count, clip.width, clip.height, clip.waveform.shape[1], clip.sample_rate_hz)
    if found != planned:
        raise DeliveryError(f"the folder holds {found} (frames, width, height, samples, Hz), not {planned}")
    return Delivery(
        path=output,
        frames=len(pictures),
        width=width,
        height=height,
        fps=float(clip.fps),
        sample_rate_hz=rate_hz,
        audio_samples=samples,
        size_bytes=sum(entry.stat().st_size for entry in folder.iterdir()),
        details={
            "video_input": "frames-dir",
            "pixel_range": [quantiser.lowest, quantiser.highest],
            "waveform_peak": waveform_peak(clip.waveform),
        },
    )
