"""The packed rows and pixels that a gathered request will have, before its text is tokenised."""

from __future__ import annotations

import math

from vflash.domain.duration import latent_frames, snap_down
from vflash.domain.footprint import Pixels, Rows
from vflash.domain.model_facts import ModelFacts
from vflash.domain.packing import Condition, Keyframe, PackedLayout, PictureBlock, SoundBlock, VideoBlock, pack
from vflash.domain.plan import Plan
from vflash.stages.gather import Gathered, Input, KeyframeInput, PictureInput, SoundInput, VideoInput
from vflash_ports.attention import SegmentKind

BYTES_PER_TOKEN = 3
"""Of UTF-8 prompt text: English has about four, Chinese three to five."""
VISION_TOKEN_PIXELS = 32 * 32
"""A vision token of the text encoder covers this many pixels; a picture has at least 64 of them."""
SMALLEST_PICTURE_TOKENS = 64


def planned_rows(prompt: str, gathered: Gathered, facts: ModelFacts) -> Rows:
    """Exact but for the text, whose tokens are estimated: nothing is tokenised yet."""
    plan = gathered.plan
    layout = pack(
        text_rows=_text_rows(prompt, gathered),
        conditions=[_planned_block(item, plan, facts) for item in gathered.inputs],
        latent_frames=plan.length.latent_frames,
        latent_height=plan.latent_height,
        latent_width=plan.latent_width,
        audio_latents=plan.length.audio_latents,
        patch=facts.denoiser.patch_size,
    )
    return count_rows(layout)


def count_rows(layout: PackedLayout) -> Rows:
    return Rows(
        text=layout.rows_of(SegmentKind.TEXT),
        condition=layout.rows_of(SegmentKind.CONDITION_VIDEO, SegmentKind.CONDITION_AUDIO),
        target_audio=layout.rows_of(SegmentKind.TARGET_AUDIO),
        target_video=layout.rows_of(SegmentKind.TARGET_VIDEO),
    )


def planned_pixels(gathered: Gathered) -> Pixels:
    longest = 0
    for item in gathered.inputs:
        if isinstance(item, VideoInput):
            longest = max(longest, item.frames.shape[0])
        elif not isinstance(item, SoundInput):
            longest = max(longest, 1)
    return Pixels(width=gathered.plan.canvas.width, height=gathered.plan.canvas.height, reference_frames=longest)


def _text_rows(prompt: str, gathered: Gathered) -> int:
    tokens = max(1, len(prompt.encode()) // BYTES_PER_TOKEN)
    for item in gathered.inputs:
        if isinstance(item, KeyframeInput | PictureInput):
            tokens += max(SMALLEST_PICTURE_TOKENS, math.prod(item.pixels.shape[:2]) // VISION_TOKEN_PIXELS)
        elif isinstance(item, VideoInput):
            pairs = len(item.sampled.pair_seconds)
            tokens += pairs * max(1, math.prod(item.frames.shape[1:3]) // VISION_TOKEN_PIXELS)
    return tokens


def _planned_block(item: Input, plan: Plan, facts: ModelFacts) -> Condition:
    codec = facts.codec
    if isinstance(item, KeyframeInput):
        return Keyframe(last=item.last)
    if isinstance(item, PictureInput):
        height, width = (side // codec.spatial_ratio for side in item.pixels.shape[:2])
        return PictureBlock(height=height, width=width)
    if isinstance(item, SoundInput):
        return SoundBlock(latents=-(-item.waveform.shape[1] // codec.hop))
    frames = snap_down(item.frames.shape[0], clip_frames=codec.clip_frames, clip_latents=codec.clip_latents)
    height, width = (side // codec.spatial_ratio for side in item.frames.shape[1:3])
    latents = latent_frames(frames, clip_frames=codec.clip_frames, clip_latents=codec.clip_latents)
    sound = 0 if item.waveform is None else -(-item.waveform.shape[1] // codec.hop)
    return VideoBlock(frames=latents, height=height, width=width, sound_latents=sound)
