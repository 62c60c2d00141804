"""A `Description` to a caption, in English or Chinese; `parse_caption` reads it back to the same description."""

from __future__ import annotations

from enum import StrEnum
from random import Random

from vflash_adapters.judge.description import Description, Rhythm, SecondObject
from vflash_adapters.judge.lexicon import CHINESE, ENGLISH, Meaning

# How often another way to say it is chosen, where there is one.
_VARIETY = 0.3


class Language(StrEnum):
    ENGLISH = "en"
    CHINESE = "zh"


def write_caption(description: Description, language: Language, rng: Random | None = None) -> str:
    """`rng` varies the wording; without it the first phrase of each meaning is used. Needs a motion and a subject."""
    assert description.motion is not None
    assert description.from_picture or description.shape is not None
    writer = _English(rng) if language is Language.ENGLISH else _Chinese(rng)
    return writer.write(description)


class _Words:
    table: dict[Meaning, tuple[str, ...]]

    def __init__(self, rng: Random | None) -> None:
        self.rng = rng

    def say(self, meaning: Meaning | None) -> str:
        if meaning is None:
            return ""
        options = self.table[meaning]
        return self.rng.choice(options) if self.maybe(_VARIETY) and self.rng else options[0]

    def maybe(self, chance: float) -> bool:
        return self.rng is not None and self.rng.random() < chance


class _English(_Words):
    table = ENGLISH

    def write(self, d: Description) -> str:
        clauses = [" ".join(filter(None, (self._subject(d), self.say(d.motion), self._background(d))))]
        if d.second is not None:
            clauses.append(self._second(d.second))
        if d.pitch is not None or d.rhythm is not None:
            clauses.append(self._sound(d))
        return ", ".join(clauses)

    def _subject(self, d: Description) -> str:
        if d.from_picture:
            return "the object in <Picture 1>" if self.maybe(_VARIETY) else "<Picture 1>"
        return _with_article(" ".join(filter(None, (self.say(d.size), d.colour, self.say(d.shape)))))

    def _background(self, d: Description) -> str:
        if d.background is None:
            return ""
        return f"on a {d.background} background" if self.maybe(0.5) else f"on {d.background}"

    def _second(self, second: SecondObject) -> str:
        return f"with a {second.colour} {self.say(second.shape)} {self.say(second.corner)}".replace(
            "a orange", "an orange"
        )

    def _sound(self, d: Description) -> str:
        # Only the first phrase of a rhythm holds its noun; the others would need one.
        rhythm = "tone" if d.rhythm is None else self.table[d.rhythm][0]
        words = " ".join(filter(None, (self.say(d.pitch), rhythm)))
        return f"with {words}" if rhythm.endswith("s") else f"with a {words}"


class _Chinese(_Words):
    table = CHINESE

    def write(self, d: Description) -> str:
        background = "" if d.background is None else f"在{self.table[str(d.background)][0]}背景上"
        clauses = [f"{self._subject(d)}{background}{self.say(d.motion)}"]
        if d.second is not None:
            shape, colour = self.say(d.second.shape), self.table[str(d.second.colour)][0]
            clauses.append(f"{self.say(d.second.corner)}有一个{colour}{shape}")
        if d.pitch is not None or d.rhythm is not None:
            clauses.append(self._sound(d))
        return "，".join(clauses)

    def _subject(self, d: Description) -> str:
        if d.from_picture:
            return self.say_picture()
        size = "" if d.size is None else f"{self.table[d.size][0]}"
        colour = "" if d.colour is None else self.table[str(d.colour)][0]
        return f"一个{size}{colour}{self.say(d.shape)}"

    def say_picture(self) -> str:
        return "<Picture 1>里的物体" if self.maybe(_VARIETY) else "<Picture 1>"

    def _sound(self, d: Description) -> str:
        pitch = self.say(d.pitch)
        if d.rhythm is None:
            return f"伴随{pitch}"
        joined = "的" if pitch and d.rhythm is not Rhythm.CLICKS else ""
        return f"伴随{self.say(d.rhythm)}{joined}{pitch}" if d.rhythm is not Rhythm.CLICKS else f"伴随{pitch}敲击声"


def _with_article(words: str) -> str:
    return f"an {words}" if words.startswith(("orange",)) else f"a {words}"
