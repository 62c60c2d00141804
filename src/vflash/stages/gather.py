"""Read what the user handed in, and put it onto the sizes the model reads; nothing heavy has been loaded yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from vflash.domain.canvas import canvas_for_aspect, reference_picture_size
from vflash.domain.model_facts import ModelFacts
from vflash.domain.plan import Plan, check_plan, plan_request
from vflash.domain.profiles import Profile
from vflash.domain.references import SampledFrames, sample_frames
from vflash.domain.request import Reference, ReferenceKind, VideoRequest, check_labels
from vflash_ports.media import PictureFit, ReferenceReader

if TYPE_CHECKING:
    import torch


@frozen(kw_only=True, eq=False)
class KeyframeInput:
    """`pixels` uint8 [H, W, 3] on the target canvas."""

    pixels: torch.Tensor
    last: bool


@frozen(kw_only=True, eq=False)
class PictureInput:
    """A reference picture, uint8 [H, W, 3], at its own size."""

    pixels: torch.Tensor


@frozen(kw_only=True, eq=False)
class VideoInput:
    """A reference video, uint8 [F, H, W, 3] at 24 fps on the canvas of its own aspect; `waveform` [2, n] or None."""

    frames: torch.Tensor
    waveform: torch.Tensor | None
    sampled: SampledFrames


@frozen(kw_only=True, eq=False)
class SoundInput:
    """A standalone reference sound, float32 [2, n]."""

    waveform: torch.Tensor


Input = KeyframeInput | PictureInput | VideoInput | SoundInput


@frozen(kw_only=True, eq=False)
class Gathered:
    """The plan, and every input in packed order."""

    plan: Plan
    inputs: tuple[Input, ...]


def gather(
    request: VideoRequest, facts: ModelFacts, reader: ReferenceReader, profile: Profile | None = None
) -> Gathered:
    """Raises `MediaError` for a file that cannot be used, `ContractError` for a plan that cannot be made."""
    check_plan(request, facts, profile)
    keyframes = [
        (reader.picture(path), last)
        for path, last in ((request.first_frame, False), (request.last_frame, True))
        if path is not None
    ]
    size = (keyframes[0][0].shape[1], keyframes[0][0].shape[0]) if keyframes else None
    plan = plan_request(request, facts, keyframe_size=size, profile=profile)
    inputs: list[Input] = [
        KeyframeInput(
            # The first keyframe given is stretched, a second one covers the canvas and is cropped.
            pixels=reader.fit_picture(
                pixels, plan.canvas.width, plan.canvas.height, PictureFit.COVER if number else PictureFit.STRETCH
            ),
            last=last,
        )
        for number, (pixels, last) in enumerate(keyframes)
    ]
    inputs += [_reference(item, number, plan, facts, reader) for number, item in enumerate(request.references, 1)]
    _check_sound_labels(request, inputs)
    return Gathered(plan=plan, inputs=tuple(inputs))


def tensors_of(item: Input) -> list[torch.Tensor]:
    """What an input holds of a file, in one order."""
    if isinstance(item, VideoInput):
        return [item.frames] if item.waveform is None else [item.frames, item.waveform]
    return [item.waveform if isinstance(item, SoundInput) else item.pixels]


def _reference(item: Reference, number: int, plan: Plan, facts: ModelFacts, reader: ReferenceReader) -> Input:
    what = f"reference {number} ({item.path})"
    if item.kind is ReferenceKind.PICTURE:
        pixels = reader.picture(item.path)
        height, width = pixels.shape[:2]
        size = reference_picture_size(
            width, height, multiple=facts.canvas_multiple, short_edge=facts.geometry.reference_image_short_edge
        )
        return PictureInput(pixels=reader.fit_picture(pixels, size.width, size.height, PictureFit.STRETCH))
    if item.kind is ReferenceKind.AUDIO:
        clip = reader.audio(item.path, max_seconds=plan.reference_seconds, sample_rate_hz=plan.sample_rate_hz)
        assert clip.waveform is not None
        return SoundInput(waveform=clip.waveform)
    clip = reader.video(
        item.path,
        max_frames=plan.length.model_frames,
        sample_rate_hz=plan.sample_rate_hz,
        size=lambda width, height: _video_size(facts, width, height),
    )
    assert clip.frames is not None
    return VideoInput(
        frames=clip.frames, waveform=clip.waveform, sampled=sample_frames(clip.frames.shape[0], what=what)
    )


def _video_size(facts: ModelFacts, width: int, height: int) -> tuple[int, int]:
    """A reference video goes onto the canvas of its own aspect, by the rule that the target follows."""
    canvas = canvas_for_aspect(
        width,
        height,
        multiple=facts.canvas_multiple,
        short_edge=facts.geometry.canvas_short_edge,
        max_pixels=facts.geometry.canvas_max_pixels,
    )
    return canvas.width, canvas.height


def _check_sound_labels(request: VideoRequest, inputs: list[Input]) -> None:
    """Whether a video has sound is known only now."""
    kinds = [item.kind for item in request.references]
    keyframes = len(inputs) - len(kinds)
    sounds = sum(
        isinstance(item, SoundInput) or (isinstance(item, VideoInput) and item.waveform is not None) for item in inputs
    )
    check_labels(
        request.prompt,
        pictures=keyframes + kinds.count(ReferenceKind.PICTURE),
        videos=kinds.count(ReferenceKind.VIDEO),
        audios=sounds,
    )
