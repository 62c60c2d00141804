"""Inputs onto the sizes the model reads, in packed order, and what the text encoder is shown of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import torch

from vflash.domain.canvas import Canvas
from vflash.domain.model_facts import GeometryFacts
from vflash.domain.request import VideoRequest
from vflash.stages.encode import presentation
from vflash.stages.gather import KeyframeInput, PictureInput, SoundInput, VideoInput, gather
from vflash_ports.errors import ContractError, MediaError
from vflash_ports.media import PictureFit, ReferenceClip
from vflash_ports.text_encoder import PicturePart, TextPart, VideoPart


class NamedMedia:
    """A `ReferenceReader` whose files say what they hold: `90x50.png`, `48f-80x48.mp4`, `48f-80x48-loud.mp4`."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def picture(self, path: Path) -> torch.Tensor:
        self.calls.append(("picture", path.name))
        width, height = (int(side) for side in path.stem.split("x"))
        return torch.full((height, width, 3), len(self.calls), dtype=torch.uint8)

    def fit_picture(self, pixels: torch.Tensor, width: int, height: int, mode: PictureFit) -> torch.Tensor:
        self.calls.append((mode, width, height))
        return pixels[:1, :1].expand(height, width, 3)

    def video(
        self,
        path: Path,
        *,
        max_frames: int,
        sample_rate_hz: int,
        size: Callable[[int, int], tuple[int, int]] | None = None,
    ) -> ReferenceClip:
        assert size is not None
        frames, sides, *loud = path.stem.split("-")
        width, height = size(*(int(side) for side in sides.split("x")))
        self.calls.append(("video", width, height, max_frames))
        count = min(int(frames.removesuffix("f")), max_frames)
        pixels = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, height, width, 3)
        return ReferenceClip(frames=pixels, waveform=torch.zeros(2, sample_rate_hz) if loud else None)

    def audio(self, path: Path, *, max_seconds: float, sample_rate_hz: int) -> ReferenceClip:
        self.calls.append(("audio", max_seconds, sample_rate_hz))
        return ReferenceClip(frames=None, waveform=torch.zeros(2, 100))


@pytest.fixture
def reader() -> NamedMedia:
    return NamedMedia()


@pytest.fixture
def tiny(facts):
    """Small canvases: short edge 64, at most 8192 pixels, reference pictures at 96."""
    return attrs.evolve(
        facts, geometry=GeometryFacts(canvas_short_edge=64, canvas_max_pixels=8192, reference_image_short_edge=96)
    )


def ask(prompt: str = "rain", **inputs) -> VideoRequest:
    return VideoRequest(prompt=prompt, **inputs)


def test_the_first_keyframe_is_stretched_the_second_covers(tiny, reader):
    """Both onto the canvas of the first one's aspect; which is the last frame stays known."""
    gathered = gather(ask(first_frame="90x50.png", last_frame="70x120.png"), tiny, reader)
    assert gathered.plan.canvas == Canvas(width=128, height=64)
    assert reader.calls[2:] == [(PictureFit.STRETCH, 128, 64), (PictureFit.COVER, 128, 64)]
    first, last = gathered.inputs
    assert isinstance(first, KeyframeInput)
    assert isinstance(last, KeyframeInput)
    assert (first.last, last.last) == (False, True)
    assert (int(first.pixels[0, 0, 0]), int(last.pixels[0, 0, 0])) == (1, 2)


def test_a_last_frame_alone_is_stretched_and_decides_the_canvas(tiny, reader):
    """It is the first keyframe that was given."""
    gathered = gather(ask(last_frame="40x80.png"), tiny, reader)
    assert gathered.plan.canvas == Canvas(width=64, height=128)
    assert reader.calls[1:] == [(PictureFit.STRETCH, 64, 128)]
    assert [item.last for item in gathered.inputs] == [True]


def test_an_explicit_canvas_wins_over_the_keyframe(tiny, reader):
    """A keyframe of another shape is stretched onto it."""
    gathered = gather(ask(first_frame="40x80.png", width=96, height=64), tiny, reader)
    assert gathered.plan.canvas == Canvas(width=96, height=64)
    assert gathered.inputs[0].pixels.shape == (64, 96, 3)


def test_references_keep_order_and_their_own_sizes(tiny, reader):
    """Pictures at their own aspect and short edge, videos on the canvas of their own aspect, sounds cut to the clip."""
    names = ["a.wav", "40x80.png", "48f-80x40.mp4"]
    gathered = gather(ask(references=names), tiny, reader)
    sound, picture, video = gathered.inputs
    assert isinstance(sound, SoundInput)
    assert isinstance(picture, PictureInput)
    assert isinstance(video, VideoInput)
    assert picture.pixels.shape == (192, 96, 3)
    assert video.frames.shape == (48, 64, 128, 3)
    assert (PictureFit.STRETCH, 96, 192) in reader.calls
    assert ("audio", 124 / 24, 32_000) in reader.calls
    assert ("video", 128, 64, 124) in reader.calls
    # References never bind the target's canvas.
    assert gathered.plan.canvas == Canvas(width=128, height=64)


def test_a_label_may_name_a_keyframe_whose_canvas_is_open(tiny, reader):
    """The early check of the plan must not forget what was given."""
    gathered = gather(
        ask("<Picture 1> turns into <Picture 2>", first_frame="9x9.png", last_frame="9x9.png"), tiny, reader
    )
    assert len(gathered.inputs) == 2


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        ({"width": 100, "height": 64}, "width must be a positive multiple"),
        ({"width": 2048, "height": 2048, "duration_s": 15}, "joint limit"),
    ],
)
def test_nothing_is_opened_for_a_plan_that_cannot_be_made(tiny, reader, request_fields, message):
    """The canvas and the budget are judged before the first file is read."""
    with pytest.raises(ContractError, match=message):
        gather(ask(first_frame="9x9.png", **request_fields), tiny, reader)
    assert reader.calls == []


def test_a_short_reference_video_is_named(tiny, reader):
    """By its place and path."""
    with pytest.raises(MediaError, match=r"reference 2 \(12f-64x64.mp4\) has 12 frames"):
        gather(ask(references=["9x9.png", "12f-64x64.mp4"]), tiny, reader)


def test_an_extreme_picture_is_refused(tiny, reader):
    """As a keyframe that decides the canvas, and as a reference."""
    with pytest.raises(ContractError, match=r"without width and height, .* within 1:4 and 4:1"):
        gather(ask(first_frame="50x10.png"), tiny, reader)
    with pytest.raises(ContractError, match="a reference picture must be within"):
        gather(ask(references=["50x10.png"]), tiny, reader)


def test_sound_labels_are_checked_once_the_videos_are_read(tiny, reader):
    """A silent video has no <Audio 1>; one with sound has."""
    gather(ask("<Audio 1>", references=["48f-64x64-loud.mp4"]), tiny, reader)
    with pytest.raises(ContractError, match="names <Audio 1> but no such input"):
        gather(ask("<Audio 1>", references=["48f-64x64.mp4"]), tiny, reader)
    with pytest.raises(ContractError, match="names <Audio 3> but 2 such input"):
        gather(ask("<Audio 3>", references=["48f-64x64-loud.mp4", "a.wav"]), tiny, reader)


def told(parts) -> str:
    """The presentation as one line."""
    words = {PicturePart: lambda _: "[picture]", VideoPart: lambda part: f"[video {len(part.pair_seconds)}]"}
    return "".join(part.text if isinstance(part, TextPart) else words[type(part)](part) for part in parts)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({}, "rain"),
        ({"first_frame": "9x9.png"}, "<Picture 1>: [picture]rain"),
        ({"last_frame": "9x9.png"}, "<Picture 1>: [picture]rain"),
        (
            {"first_frame": "9x9.png", "last_frame": "9x9.png"},
            "<Picture 1>: [picture]<Picture 2>: [picture]rain",
        ),
        (
            {"references": ["a.wav", "48f-64x64.mp4", "9x9.png", "96f-64x64-loud.mp4", "8x8.png", "b.wav"]},
            "<Audio 1>: <Video 1>: [video 2]<Picture 1>: [picture]<Audio 2>: <Video 2>: [video 4]"
            "<Picture 2>: [picture]<Audio 3>: rain",
        ),
    ],
)
def test_labels_are_numbered_by_kind_in_request_order(tiny, reader, inputs, expected):
    """A soundtrack takes an Audio number before its Video label; the prompt comes last, verbatim."""
    gathered = gather(ask(**inputs), tiny, reader)
    assert told(presentation("rain", gathered.inputs)) == expected


def test_every_segment_is_its_own_part(tiny, reader):
    """Labels and prompt are tokenised apart, so they must not be glued together."""
    gathered = gather(ask(references=["a.wav", "48f-64x64-loud.mp4"]), tiny, reader)
    texts = [part.text for part in presentation("rain", gathered.inputs) if isinstance(part, TextPart)]
    assert texts == ["<Audio 1>: ", "<Audio 2>: ", "<Video 1>: ", "rain"]


def test_the_encoder_sees_the_sampled_frames(tiny, reader):
    """Two a second: frames 0, 12, 24 and 36 of 48."""
    gathered = gather(ask(references=["48f-64x64.mp4"]), tiny, reader)
    part = presentation("rain", gathered.inputs)[1]
    assert isinstance(part, VideoPart)
    assert part.frames[:, 0, 0, 0].tolist() == [0, 12, 24, 36]
    assert part.pair_seconds == (0.25, 1.25)
