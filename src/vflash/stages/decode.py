"""Decode: latents to a clip whose frames stream while the sink encodes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vflash.domain.duration import FPS, ClipLength, clip_length
from vflash.domain.model_facts import CodecFacts
from vflash_ports.errors import CheckpointError, DeliveryError, NonFiniteError
from vflash_ports.latent_codec import LatentCodec
from vflash_ports.media import Clip, Latents
from vflash_ports.observer import Observer


@torch.inference_mode()
def decode(latents: Latents, length: ClipLength, facts: CodecFacts, codec: LatentCodec, observer: Observer) -> Clip:
    """Sound first (it is small), then frames on demand; both cut to what is delivered."""
    samples = length.delivered_frames * facts.sample_rate_hz // FPS
    with observer.stage("audio_decode"):
        waveform = codec.decode_audio(latents.audio)
    if waveform.shape[1] < samples:
        raise DeliveryError(f"the audio decoder gave {waveform.shape[1]} samples; {samples} are needed")
    if not bool(waveform.isfinite().all()):
        raise NonFiniteError("the decoded waveform holds NaN or infinity; the saved latents can be decoded again")
    height, width = (size * facts.spatial_ratio for size in latents.video.shape[3:])
    return Clip(
        width=width,
        height=height,
        frame_count=length.delivered_frames,
        fps=FPS,
        frames=_delivered(codec.decode_video(latents.video), length, observer),
        waveform=waveform[:, :samples],
        sample_rate_hz=facts.sample_rate_hz,
    )


@torch.inference_mode()  # entered anew for each chunk, so that it never leaks into the consumer
def _delivered(chunks: Iterator[torch.Tensor], length: ClipLength, observer: Observer) -> Iterator[torch.Tensor]:
    """Whole chunks until the delivered count is reached; the model's surplus frames are dropped."""
    done = 0
    for chunk in chunks:
        part = chunk[: length.delivered_frames - done]
        done += len(part)
        observer.progress("decoding", done, length.delivered_frames)
        if len(part):
            yield part
        if done == length.delivered_frames:
            return
    raise DeliveryError(f"the video decoder gave {done} frames; {length.delivered_frames} are needed")


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
