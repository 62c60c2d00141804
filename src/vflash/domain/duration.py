"""Seconds, frames, latents and samples. 24 fps video, 40 audio latents a second."""

from __future__ import annotations

from attrs import frozen

from vflash_ports.errors import ContractError

FPS = 24
AUDIO_LATENTS_PER_SECOND = 40
AUDIO_CHANNELS = 2
LEAD_LATENTS = 2
"""What is left of a clip's latents once its last ones are dropped."""
MIN_DURATION_S = 5
MAX_DURATION_S = 15


@frozen(kw_only=True)
class ClipLength:
    """What a request of whole seconds means: the model's frames (17n + 5) cover the delivered ones (24 a second)."""

    model_frames: int
    delivered_frames: int
    latent_frames: int
    audio_latents: int


def clip_length(duration_s: int, *, clip_frames: int, clip_latents: int) -> ClipLength:
    """`clip_frames` and `clip_latents` are the video VAE's 17 and 5."""
    delivered = FPS * duration_s
    frames = snap_up(delivered, clip_frames=clip_frames, clip_latents=clip_latents)
    return ClipLength(
        model_frames=frames,
        delivered_frames=delivered,
        latent_frames=latent_frames(frames, clip_frames=clip_frames, clip_latents=clip_latents),
        audio_latents=audio_latents(frames),
    )


def snap_up(frames: int, *, clip_frames: int, clip_latents: int) -> int:
    """The smallest clip_frames * n + clip_latents that holds `frames`, n >= 0."""
    if frames < 1:
        raise ContractError(f"a clip needs at least one frame, got {frames}")
    return max(0, -(-(frames - clip_latents) // clip_frames)) * clip_frames + clip_latents


def snap_down(frames: int, *, clip_frames: int, clip_latents: int) -> int:
    """For reference videos: the largest clip_frames * n + clip_latents within `frames`; short ones keep n = 1."""
    return max(1, (frames - clip_latents) // clip_frames) * clip_frames + clip_latents


def latent_frames(frames: int, *, clip_frames: int, clip_latents: int) -> int:
    """Latent frames of a 17n + 5 clip: 5n + 2."""
    if frames % clip_frames != clip_latents:
        raise ContractError(f"frames must be {clip_frames}n + {clip_latents}, got {frames}")
    return (frames - clip_latents) // clip_frames * clip_latents + LEAD_LATENTS


def audio_latents(frames: int) -> int:
    """Audio latents a channel that cover `frames`, rounded half to even as Python does."""
    return round(frames / FPS * AUDIO_LATENTS_PER_SECOND)
