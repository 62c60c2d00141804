"""A caption, English or Chinese, to the `Description` it states. Strict: a word outside the grammar is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from vflash_adapters.judge.description import (
    Background,
    Colour,
    Corner,
    Description,
    Motion,
    Pitch,
    Rhythm,
    SecondObject,
    Shape,
    Size,
)
from vflash_adapters.judge.lexicon import CHINESE, COLOUR_WORDS, ENGLISH, Mark, Meaning, phrases
from vflash_ports.errors import ContractError

_ENGLISH = phrases(ENGLISH)
_CHINESE = {phrase.replace(" ", ""): meaning for phrase, meaning in phrases(CHINESE).items()}  # written without spaces
_BREAKS = re.compile(r"[\s,.;!，。；！、]+")
_HAN = re.compile(r"[\u4e00-\u9fff]")
_FIELD_OF: dict[type, str] = {Size: "size", Motion: "motion", Pitch: "pitch", Rhythm: "rhythm"}


def parse_caption(caption: str) -> Description:
    """`ContractError` names a word that is not in the grammar, or an attribute that is said twice."""
    meanings = [meaning for meaning in _meanings(caption) if meaning is not Mark.FILLER]
    if not meanings:
        raise ContractError("the caption is empty; say what the clip should show, e.g. 'a red ball bounces on blue'")
    return _Reader(caption).read(meanings)


def caption_objection(caption: str) -> str | None:
    """What is wrong with a caption, for those who go on anyway; None if it is in the grammar."""
    try:
        parse_caption(caption)
    except ContractError as error:
        return str(error)
    return None


def _meanings(caption: str) -> Iterator[Meaning]:
    if _HAN.search(caption):
        yield from _cut(_BREAKS.sub("", caption.lower()), _CHINESE, caption)
        return
    yield from _cut(" ".join(word for word in _BREAKS.split(caption.lower()) if word), _ENGLISH, caption, spaced=True)


def _cut(text: str, table: dict[str, Meaning], caption: str, *, spaced: bool = False) -> Iterator[Meaning]:
    """Longest phrase first; with `spaced`, only at word ends."""
    longest = max(map(len, table))
    while text := text.strip():
        for length in range(min(longest, len(text)), 0, -1):
            head, rest = text[:length], text[length:]
            if head in table and not (spaced and rest and not rest.startswith(" ")):
                yield table[head]
                text = rest
                break
        else:
            word = text.split(" ")[0] if spaced else text[:4]
            known = ", ".join(phrase for phrase, meaning in table.items() if not isinstance(meaning, Mark))
            raise ContractError(f"{word!r} in the caption {caption!r} is not in the world's grammar: {known}")


class _Reader:
    """Reads meanings from left to right; colours wait for the thing they belong to."""

    def __init__(self, caption: str) -> None:
        self.caption = caption
        self.found: dict[str, Any] = {}
        self.colour: str | None = None
        self.corner: Corner | None = None
        self.second: tuple[Shape, str | None] | None = None

    def read(self, meanings: list[Meaning]) -> Description:
        previous: Meaning | None = None
        for index, meaning in enumerate(meanings):
            following = meanings[index + 1] if index + 1 < len(meanings) else None
            self._take(meaning, previous, following)
            previous = meaning
        if self.colour is not None:
            self._set("colour", Colour(self.colour) if self.colour in set(Colour) else self._no_object(self.colour))
        return Description(**self.found, second=self._second_object())

    def _take(self, meaning: Meaning, previous: Meaning | None, following: Meaning | None) -> None:
        if type(meaning) is str:
            assert meaning in COLOUR_WORDS
            if previous is Mark.ON or following is Mark.BACKGROUND:
                self._set("background", self._background(meaning))
            else:
                self.colour = meaning
        elif isinstance(meaning, Shape):
            self._shape(meaning)
        elif isinstance(meaning, Corner):
            self.corner = meaning
        elif meaning is Mark.PICTURE:
            self.found["from_picture"] = True
        elif isinstance(meaning, Size) and ("shape" in self.found or self.found.get("from_picture")):
            if meaning is Size.LARGE:
                raise ContractError(f"the second object in {self.caption!r} cannot be large; leave its size out")
        elif not isinstance(meaning, Mark):
            self._set(_FIELD_OF[type(meaning)], meaning)

    def _shape(self, shape: Shape) -> None:
        if "shape" not in self.found and not self.found.get("from_picture"):
            self._set("shape", shape)
            if self.colour is not None:
                self._set("colour", self._object_colour(self.colour))
        elif self.second is None:
            self.second = (shape, self.colour)
        else:
            raise ContractError(f"the caption {self.caption!r} names a third object; the world has at most two")
        self.colour = None

    def _second_object(self) -> SecondObject | None:
        if self.second is None:
            if self.corner is not None:
                raise ContractError(f"the caption {self.caption!r} names a corner but no second object in it")
            return None
        shape, colour = self.second
        if colour is None or self.corner is None:
            raise ContractError(f"the second object in {self.caption!r} needs a colour and a corner, e.g. top left")
        return SecondObject(shape=shape, colour=self._object_colour(colour), corner=self.corner)

    def _set(self, name: str, value: object) -> None:
        if self.found.setdefault(name, value) != value:
            raise ContractError(f"the caption {self.caption!r} says {name} twice: {self.found[name]} and {value}")

    def _object_colour(self, word: str) -> Colour:
        return Colour(word) if word in set(Colour) else self._no_object(word)

    def _no_object(self, word: str) -> Colour:
        raise ContractError(f"no object is {word} in this world; choose one of {', '.join(Colour)}")

    def _background(self, word: str) -> Background:
        if word not in set(Background):
            raise ContractError(f"no background is {word} in this world; choose one of {', '.join(Background)}")
        return Background(word)
