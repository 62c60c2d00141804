"""What a user asks for, checked as far as it can be without opening a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from attrs import field, frozen
from attrs.converters import optional
from attrs.validators import optional as maybe

from vflash.domain.delivery import AudioDelivery, KeyframeDelivery
from vflash.domain.duration import MAX_DURATION_S, MIN_DURATION_S
from vflash.domain.fields import Choice, errors_name_their_field, shown, to_path, whole_number
from vflash.domain.schedule import MAX_EVALUATIONS, flow_shift
from vflash_ports.errors import ContractError

MAX_PROMPT_CHARS = 65_536
MAX_PICTURES, MAX_VIDEOS, MAX_AUDIOS, MAX_REFERENCES = 9, 3, 3, 12


class Mode(StrEnum):
    """Derived from what was given, never asked for."""

    T2VA = "t2va"
    I2VA = "i2va"
    L2VA = "l2va"
    FL2VA = "fl2va"
    REF2VA = "ref2va"


class ReferenceKind(Choice):
    PICTURE = "picture"
    VIDEO = "video"
    AUDIO = "audio"


_SUFFIXES = {
    ReferenceKind.PICTURE: (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"),
    ReferenceKind.VIDEO: (".mp4", ".mov", ".webm", ".mkv", ".m4v", ".avi"),
    ReferenceKind.AUDIO: (".wav", ".mp3", ".m4a", ".aac", ".flac", ".ogg", ".opus"),
}


@frozen(kw_only=True, field_transformer=errors_name_their_field)
class Reference:
    """One reference file; the order of references is part of the request."""

    kind: ReferenceKind = field(converter=ReferenceKind)
    path: Path = field(converter=to_path)


def reference(value: Any) -> Reference:
    """A `Reference`, a path with a known suffix, or "picture:PATH", "video:PATH", "audio:PATH"."""
    if isinstance(value, Reference):
        return value
    if not isinstance(value, str | Path) or not str(value):
        raise ContractError(f"a reference must be a path or a Reference, got {shown(value)}")
    text = str(value)
    kind, colon, rest = text.partition(":")
    if colon and rest and kind in tuple(ReferenceKind):
        return Reference(kind=ReferenceKind(kind), path=Path(rest))
    to_path(value)  # a URL may have a known suffix too
    suffix = Path(text).suffix.lower()
    for known, suffixes in _SUFFIXES.items():
        if suffix in suffixes:
            return Reference(kind=known, path=Path(text))
    raise ContractError(f"cannot tell what reference {text!r} is; say picture:{text}, video:{text} or audio:{text}")


def _references(values: Any) -> tuple[Reference, ...]:
    if isinstance(values, str | bytes | bytearray | Path | Reference) or not isinstance(values, Sequence):
        raise ContractError(f"must be a list of paths in order, got {shown(values)}")
    return tuple(reference(value) for value in values)


def _prompt(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ContractError(f"must be a text that is not blank, got {shown(value)}")
    if len(value) > MAX_PROMPT_CHARS:
        raise ContractError(f"has {len(value)} characters; at most {MAX_PROMPT_CHARS} are taken")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # What a terminal's argument becomes where its bytes are not UTF-8.
        raise ContractError(f"character {error.start + 1} is not valid Unicode; give the prompt in UTF-8") from None
    return value


@frozen(kw_only=True, field_transformer=errors_name_their_field)
class VideoRequest:
    """One clip. Sizes in pixels, `duration_s` in whole seconds, `steps` in model evaluations.

    `steps` and the flow shifts left out are the profile's, else 50 and the checkpoint's own.
    Without `width` and `height` the canvas follows the first keyframe, else it is the model's own 16:9. The prompt is
    used verbatim and may name what was given as `<Picture 1>`, `<Video 1>`, `<Audio 1>`. Raises `ContractError`.
    """

    prompt: str = field(converter=_prompt)
    first_frame: Path | None = field(default=None, converter=optional(to_path))
    last_frame: Path | None = field(default=None, converter=optional(to_path))
    references: tuple[Reference, ...] = field(default=(), converter=_references)
    width: int | None = field(default=None, validator=maybe(whole_number(1, 1 << 16)))
    height: int | None = field(default=None, validator=maybe(whole_number(1, 1 << 16)))
    duration_s: int = field(default=5, validator=whole_number(MIN_DURATION_S, MAX_DURATION_S))
    steps: int | None = field(default=None, validator=maybe(whole_number(1, MAX_EVALUATIONS)))
    video_shift: float | None = field(default=None, converter=optional(flow_shift))
    audio_shift: float | None = field(default=None, converter=optional(flow_shift))
    seed: int = field(default=0, validator=whole_number(0, 2**63 - 1))
    save_latents: Path | None = field(default=None, converter=optional(to_path))
    audio_delivery_profile: AudioDelivery = field(default=AudioDelivery.UNCHANGED, converter=AudioDelivery)
    keyframe_delivery_profile: KeyframeDelivery = field(default=KeyframeDelivery.DECODED, converter=KeyframeDelivery)

    def __attrs_post_init__(self) -> None:
        if (self.width is None) != (self.height is None):
            raise ContractError("width and height must be given together, or neither")
        if self.references and (self.first_frame or self.last_frame):
            raise ContractError(
                "references cannot be combined with first_frame or last_frame; choose one kind of input"
            )
        if self.keyframe_delivery_profile is KeyframeDelivery.EXACT_V1 and not (self.first_frame or self.last_frame):
            raise ContractError("keyframe_delivery_profile exact-v1 needs first_frame or last_frame; else use decoded")
        _check_counts(self.references)
        check_labels(self.prompt, pictures=self._pictures(), videos=self._count(ReferenceKind.VIDEO), audios=None)

    @property
    def mode(self) -> Mode:
        if self.references:
            return Mode.REF2VA
        if self.first_frame and self.last_frame:
            return Mode.FL2VA
        if self.first_frame:
            return Mode.I2VA
        return Mode.L2VA if self.last_frame else Mode.T2VA

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Every file this request reads, in packed order."""
        keyframes = (self.first_frame, self.last_frame)
        return tuple(frame for frame in keyframes if frame) + tuple(item.path for item in self.references)

    def _count(self, kind: ReferenceKind) -> int:
        return sum(item.kind is kind for item in self.references)

    def _pictures(self) -> int:
        return self._count(ReferenceKind.PICTURE) + bool(self.first_frame) + bool(self.last_frame)


def _check_counts(references: tuple[Reference, ...]) -> None:
    kinds = [item.kind for item in references]
    for kind, limit in (
        (ReferenceKind.PICTURE, MAX_PICTURES),
        (ReferenceKind.VIDEO, MAX_VIDEOS),
        (ReferenceKind.AUDIO, MAX_AUDIOS),
    ):
        if kinds.count(kind) > limit:
            raise ContractError(f"at most {limit} {kind} references are taken, got {kinds.count(kind)}")
    if len(kinds) > MAX_REFERENCES:
        raise ContractError(f"at most {MAX_REFERENCES} references are taken in total, got {len(kinds)}")
    if kinds and set(kinds) == {ReferenceKind.AUDIO}:
        raise ContractError("an audio reference needs at least one picture or video reference beside it")


_LABEL = re.compile(r"<\s*(picture|image|video|audio)\s*(\d+)\s*>", re.IGNORECASE)
_NAMES = {"picture": "Picture", "image": "Picture", "video": "Video", "audio": "Audio"}


def check_labels(prompt: str, *, pictures: int, videos: int, audios: int | None) -> None:
    """Every label in the prompt is spelt as the model reads it and names an input; `audios=None`: not known yet."""
    given = {"Picture": pictures, "Video": videos, "Audio": audios}
    for match in _LABEL.finditer(prompt):
        name, number = _NAMES[match[1].lower()], int(match[2])
        exact = f"<{name} {number}>"
        if match[0] != exact:
            raise ContractError(f"the prompt says {match[0]!r}; the model reads {exact!r}")
        count = given[name]
        if count is not None and not 1 <= number <= count:
            raise ContractError(f"the prompt names {exact} but {count or 'no'} such input was given")
