"""Reference sound: a file's first sound stream, cut at its own rate, made stereo, resampled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vflash_adapters.media.open_media import DecodeClock, moving_streams, open_media, require_codec
from vflash_adapters.media.reference_limits import ReferenceLimits
from vflash_adapters.media.resample import resample
from vflash_ports.errors import MediaError

if TYPE_CHECKING:
    import torch
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.stream import Stream

MAX_RATE_HZ = 384_000
# Below half a frame a soundtrack counts as starting with its pictures, as the released model assumes of all.
SYNC_TOLERANCE_S = 1 / 48
MAX_OFFSET_S = 10.0


def read_sound(path: Path, *, max_seconds: float, sample_rate_hz: int, limits: ReferenceLimits) -> torch.Tensor:
    """float32 stereo [2, n] at `sample_rate_hz`. `MediaError` if there is no sound or it cannot be used."""
    with open_media(path, limits, what="sound") as container:
        if not container.streams.audio:
            raise MediaError(f"sound {path} holds no sound stream")
        clock = DecodeClock(path, limits, what="sound")
        waveform = _prepared(container, path, max_seconds, sample_rate_hz, 0.0, clock)
    if waveform is None:
        raise MediaError(f"sound {path} holds no samples that can be decoded")
    return waveform


def read_soundtrack(
    path: Path, *, max_seconds: float, sample_rate_hz: int, limits: ReferenceLimits
) -> torch.Tensor | None:
    """As `read_sound`, in step with the pictures: None without a sound stream or with an empty one."""
    with open_media(path, limits, what="sound") as container:
        if not container.streams.audio:
            return None
        late_s = _late_seconds(container, path)
        return _prepared(container, path, max_seconds, sample_rate_hz, late_s, DecodeClock(path, limits, what="sound"))


def _prepared(
    container: InputContainer, path: Path, max_seconds: float, sample_rate_hz: int, late_s: float, clock: DecodeClock
) -> torch.Tensor | None:
    import torch

    stream = container.streams.audio[0]
    rate_hz = _require_usable(stream, path)
    wanted = int(max_seconds * rate_hz)
    late = round(late_s * rate_hz)
    decoded = _decoded(container, stream, rate_hz, max(0, wanted - late), clock)
    if decoded is None:
        return None
    if not torch.isfinite(decoded).all():
        raise MediaError(f"sound {path} holds samples that are not finite")
    aligned = torch.nn.functional.pad(decoded, (late, 0)) if late >= 0 else decoded[:, -late:]
    cut = aligned[:, :wanted]
    if cut.shape[1] == 0:
        return None
    stereo = cut if cut.shape[0] == 2 else cut.expand(2, -1).contiguous()
    return resample(stereo, rate_hz, sample_rate_hz)


def _late_seconds(container: InputContainer, path: Path) -> float:
    """How long after (before, if negative) the pictures the sound starts; 0 within the tolerance."""
    pictures = moving_streams(container)
    if not pictures:
        return 0.0
    starts_s = [_start_seconds(stream) for stream in (container.streams.audio[0], pictures[0])]
    late_s = starts_s[0] - starts_s[1]
    if abs(late_s) > MAX_OFFSET_S:
        raise MediaError(f"video {path}: its sound starts {late_s:.1f} s from its pictures: re-encode it")
    return 0.0 if abs(late_s) <= SYNC_TOLERANCE_S else late_s


def _start_seconds(stream: Stream) -> float:
    return float(stream.start_time * stream.time_base) if stream.start_time and stream.time_base else 0.0


def _require_usable(stream: AudioStream, path: Path) -> int:
    require_codec(stream, path, what="sound")
    channels, rate_hz = stream.codec_context.channels, stream.codec_context.sample_rate
    if channels not in (1, 2):
        raise MediaError(f"sound {path} has {channels} channels: mix it down to mono or stereo")
    if not 1 <= rate_hz <= MAX_RATE_HZ:
        raise MediaError(f"sound {path} has a rate of {rate_hz} Hz, outside 1 to {MAX_RATE_HZ}")
    return rate_hz


def _decoded(
    container: InputContainer, stream: AudioStream, rate_hz: int, wanted: int, clock: DecodeClock
) -> torch.Tensor | None:
    """float32 [channels, about `wanted`], in the file's rate and layout. Encoder priming is skipped by the decoder."""
    import torch
    from av.audio.resampler import AudioResampler

    planar = AudioResampler(format="fltp", layout=stream.layout, rate=rate_hz)
    parts: list[torch.Tensor] = []
    count = 0
    for frame in container.decode(stream):
        clock.tick()
        fresh = [torch.from_numpy(part.to_ndarray()) for part in planar.resample(frame)]
        parts += fresh
        count += sum(part.shape[1] for part in fresh)
        if count >= wanted:
            break
    parts += [torch.from_numpy(part.to_ndarray()) for part in planar.resample(None)]
    return torch.cat(parts, dim=1).to(torch.float32) if parts else None
