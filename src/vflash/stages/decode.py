"""Decode: latents to a clip whose frames stream while the sink encodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from attrs import frozen

from vflash.domain.duration import FPS, ClipLength, clip_length
from vflash.domain.model_facts import CodecFacts
from vflash.stages.audio_delivery import deliver_audio
from vflash.stages.delivery_profiles import AS_DECODED, DeliveryProfiles
from vflash.stages.keyframe_delivery import exact_ends
from vflash_ports.errors import CheckpointError, DeliveryError
from vflash_ports.latent_codec import LatentCodec
from vflash_ports.media import Clip, Latents
from vflash_ports.observer import Observer


@frozen(kw_only=True, eq=False)
class DecodedClip:
    """`clip` streams; `changed` says what the delivery profiles did to it, for the receipt."""

    clip: Clip
    changed: dict[str, Any]


@torch.inference_mode()
def decode(
    latents: Latents,
    length: ClipLength,
    facts: CodecFacts,
    codec: LatentCodec,
    observer: Observer,
    profiles: DeliveryProfiles = AS_DECODED,
) -> DecodedClip:
    """Sound first (it is small), then frames on demand; both cut to what is delivered."""
    samples = length.delivered_frames * facts.sample_rate_hz // FPS
    with observer.stage("audio_decode"):
        waveform, audio_report = deliver_audio(
            _sound(latents, codec, samples),
            samples=samples,
            sample_rate_hz=facts.sample_rate_hz,
            profile=profiles.audio,
        )
    frames = _delivered(codec.decode_video(latents.video), length, observer)
    if profiles.ends is not None:
        frames = exact_ends(frames, length.delivered_frames, profiles.ends)
    height, width = (size * facts.spatial_ratio for size in latents.video.shape[3:])
    clip = Clip(
        width=width,
        height=height,
        frame_count=length.delivered_frames,
        fps=FPS,
        frames=frames,
        waveform=waveform,
        sample_rate_hz=facts.sample_rate_hz,
    )
    keyframe_report = profiles.keyframe_report(length.delivered_frames)
    return DecodedClip(clip=clip, changed={"audio_delivery": audio_report, "keyframe_delivery": keyframe_report})


def _sound(latents: Latents, codec: LatentCodec, samples: int) -> Callable[[], torch.Tensor]:
    def decoded() -> torch.Tensor:
        waveform = codec.decode_audio(latents.audio)
        if waveform.shape[1] < samples:
            raise DeliveryError(f"the audio decoder gave {waveform.shape[1]} samples; {samples} are needed")
        return waveform

    return decoded


@torch.inference_mode()  # entered anew for each chunk, so that it never leaks into the consumer
def _delivered(chunks: Iterator[torch.Tensor], length: ClipLength, observer: Observer) -> Iterator[torch.Tensor]:
    """Whole chunks until the delivered count is reached; the model's surplus frames are dropped. Progress tells of
    decoded frames: of those that a device is still at, when the next ones are queued behind them."""
    done, total = 0, length.delivered_frames
    untold: Callable[[], None] | None = None
    for chunk in chunks:
        if untold is not None:
            untold()
        part = chunk[: total - done]
        done += len(part)
        untold = _told_when_decoded(part, partial(observer.progress, "decoding", done, total))
        del chunk
        if len(part):
            yield part
        del part  # not held while the next chunk is decoded
        if done == total:
            break
    if untold is not None:
        untold()
    if done < total:
        raise DeliveryError(f"the video decoder gave {done} frames; {total} are needed")


def _told_when_decoded(frames: torch.Tensor, tell: Callable[[], None]) -> Callable[[], None] | None:
    """Told at once on the CPU; elsewhere the returned call waits for what is queued now, then tells."""
    if frames.device.type == "cpu":
        tell()
        return None
    decoded = torch.cuda.Event()
    decoded.record(torch.cuda.current_stream(frames.device))

    def wait_and_tell() -> None:
        decoded.synchronize()
        tell()

    return wait_and_tell


def saved_length(latents: Latents, facts: CodecFacts, *, what: str) -> ClipLength:
    """The clip length that kept latents were made for, from their metadata, checked against their shapes."""
    try:
        duration_s = int(latents.metadata["duration_s"])
    except (KeyError, ValueError):
        raise CheckpointError(f"{what} has no readable duration_s in its metadata; it was not written here") from None
    length = clip_length(duration_s, clip_frames=facts.clip_frames, clip_latents=facts.clip_latents)
    expected = (1, facts.latent_channels, length.latent_frames), (2, facts.audio_latent_channels, length.audio_latents)
    given = tuple(latents.video.shape[:3]), tuple(latents.audio.shape)
    if given != expected:
        raise CheckpointError(f"{what} holds latents of shapes {given}, but {duration_s} s needs {expected}")
    return length
