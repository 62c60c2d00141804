"""Encode: the presentation through the text encoder, pictures and sounds through the VAEs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from vflash.domain.duration import snap_down
from vflash.domain.model_facts import ModelFacts
from vflash.domain.packing import Condition, Keyframe, PictureBlock, SoundBlock, VideoBlock
from vflash.stages.gather import Gathered, Input, KeyframeInput, PictureInput, SoundInput, VideoInput
from vflash_ports.latent_codec import LatentCodec
from vflash_ports.text_encoder import Part, PicturePart, TextConditioning, TextPart, VideoPart

if TYPE_CHECKING:
    import torch


@frozen(kw_only=True, eq=False)
class Conditions:
    """Clean conditioning latents in packed order: `video` [1, C, T, h, w] each, `audio` [2, A, C] each, float32 CPU."""

    blocks: tuple[Condition, ...] = ()
    video: tuple[torch.Tensor, ...] = ()
    audio: tuple[torch.Tensor, ...] = ()


@frozen(kw_only=True, eq=False)
class Conditioning:
    """All that the denoiser needs of a request beside its noise."""

    text: TextConditioning
    conditions: Conditions


def presentation(prompt: str, inputs: Sequence[Input]) -> list[Part]:
    """A label and a vision block for each input in order, numbered per modality, then the prompt verbatim.

    A video's soundtrack takes an Audio number before its Video label; a waveform itself is never shown.
    """
    parts: list[Part] = []
    pictures = videos = sounds = 0
    for item in inputs:
        if isinstance(item, KeyframeInput | PictureInput):
            pictures += 1
            parts += [TextPart(text=f"<Picture {pictures}>: "), PicturePart(pixels=item.pixels)]
        if isinstance(item, SoundInput) or (isinstance(item, VideoInput) and item.waveform is not None):
            sounds += 1
            parts.append(TextPart(text=f"<Audio {sounds}>: "))
        if isinstance(item, VideoInput):
            videos += 1
            frames = item.frames[list(item.sampled.indices)]
            parts += [
                TextPart(text=f"<Video {videos}>: "),
                VideoPart(frames=frames, pair_seconds=item.sampled.pair_seconds),
            ]
    return [*parts, TextPart(text=prompt)]


def encode_conditions(gathered: Gathered, facts: ModelFacts, codec: LatentCodec) -> Conditions:
    """Every picture, video and sound into normalised latents; block sizes come from what the VAEs gave."""
    blocks: list[Condition] = []
    video: list[torch.Tensor] = []
    audio: list[torch.Tensor] = []
    for item in gathered.inputs:
        waveform = item.waveform if isinstance(item, VideoInput | SoundInput) else None
        if waveform is not None:
            audio.append(codec.encode_waveform(waveform))
        if isinstance(item, SoundInput):
            blocks.append(SoundBlock(latents=audio[-1].shape[1]))
            continue
        video.append(codec.encode_pixels(_codec_frames(item, facts)))
        frames, height, width = video[-1].shape[2:]
        if isinstance(item, KeyframeInput):
            blocks.append(Keyframe(last=item.last))
        elif isinstance(item, PictureInput):
            blocks.append(PictureBlock(height=height, width=width))
        else:
            sound = audio[-1].shape[1] if waveform is not None else 0
            blocks.append(VideoBlock(frames=frames, height=height, width=width, sound_latents=sound))
    return Conditions(blocks=tuple(blocks), video=tuple(video), audio=tuple(audio))


def _codec_frames(item: KeyframeInput | PictureInput | VideoInput, facts: ModelFacts) -> torch.Tensor:
    """uint8 [F, H, W, 3]: a single picture, or a video cut down to whole 17n + 5 frames."""
    if not isinstance(item, VideoInput):
        return item.pixels[None]
    codec = facts.codec
    return item.frames[: snap_down(len(item.frames), clip_frames=codec.clip_frames, clip_latents=codec.clip_latents)]
