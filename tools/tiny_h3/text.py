"""Captions for training, their tokens, and the rows that pictures put in front of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import attrs
from attrs import field, frozen

from tiny_h3.scenes import describe, draw_scenes
from vflash_adapters.judge.description import Description, Pitch, Rhythm
from vflash_adapters.judge.lexicon import CHINESE
from vflash_adapters.judge.write import Language, write_caption
from vflash_adapters.tiny_checkpoint.tokenizer import write_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CORPUS_SEED = 77
MERGES = 460
_CHINESE_SHARE = 0.35


def corpus(count: int = 2000) -> tuple[str, ...]:
    """What the tokenizer's merges are learnt from, always the same: English captions whole, Chinese ones as words, so
    that no merge joins two words and an unseen pairing has the same tokens as a seen one."""
    rng = Random(CORPUS_SEED)
    captions = [training_caption(d, rng, language=Language.ENGLISH) for d in describe(draw_scenes(count, CORPUS_SEED))]
    words = [word for phrases in CHINESE.values() for phrase in phrases for word in (phrase.removesuffix("色"), phrase)]
    labels = [f"<Picture {i}>: " for i in range(1, 10)]
    return (*captions, *words * 40, *labels * 20, *["，"] * 40)


def training_caption(
    description: Description, rng: Random, *, from_picture: bool = False, language: Language | None = None
) -> str:
    """One way to say it, in either language unless one is given, with some of it left unsaid."""
    pitch, rhythm = _sound_said(description, rng)
    said = attrs.evolve(
        description,
        size=description.size if rng.random() < 0.7 else None,
        background=description.background if rng.random() < 0.9 else None,
        pitch=pitch,
        rhythm=rhythm,
    )
    if from_picture:
        said = attrs.evolve(said, shape=None, colour=None, size=None, from_picture=True)
    drawn = Language.CHINESE if rng.random() < _CHINESE_SHARE else Language.ENGLISH
    language = language or drawn
    caption = write_caption(said, language, rng)
    return _sentence(caption) if language is Language.ENGLISH and rng.random() < 0.3 else caption


@frozen(kw_only=True, eq=False)
class Presenter:
    """Token ids as the pipeline makes them: each segment on its own, no special tokens added."""

    tokenizer: Tokenizer
    _picture: tuple[int, ...] = field(init=False)

    @_picture.default
    def _vision_block(self) -> tuple[int, ...]:
        # One pad: every picture is one vision token (sizes.PICTURE_PIXELS).
        found = (self.tokenizer.token_to_id(f"<|{name}|>") for name in ("vision_start", "image_pad", "vision_end"))
        ids = tuple(number for number in found if number is not None)
        assert len(ids) == 3, "the tokenizer lacks Qwen's vision tokens"
        return ids

    @property
    def image_pad(self) -> int:
        return self._picture[1]

    @property
    def silent(self) -> int:
        """The token that a caption of nothing is made of."""
        number = self.tokenizer.token_to_id("<|endoftext|>")
        assert number is not None
        return int(number)

    def prompts(self, captions: Sequence[str]) -> list[list[int]]:
        return [e.ids for e in self.tokenizer.encode_batch(list(captions), add_special_tokens=False)]

    def pictures(self, count: int) -> tuple[list[int], list[int]]:
        """Ids and modality tags (1 text, 0 video) of the rows before the prompt."""
        ids: list[int] = []
        tags: list[int] = []
        for number in range(1, count + 1):
            label = self.tokenizer.encode(f"<Picture {number}>: ", add_special_tokens=False).ids
            ids += [*label, *self._picture]
            tags += [1] * len(label) + [0] * len(self._picture)
        return ids, tags


def open_presenter(folder: Path) -> Presenter:
    """The run's tokenizer, learnt at the first run."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer" / "tokenizer.json"
    if not file.exists():
        write_tokenizer(file.parent, corpus(), MERGES)
    return Presenter(tokenizer=Tokenizer.from_file(str(file)))


def _sound_said(description: Description, rng: Random) -> tuple[Pitch | None, Rhythm | None]:
    choice = rng.random()
    pitch = description.pitch if choice < 0.7 else None
    rhythm = description.rhythm if choice < 0.5 or choice > 0.85 else None
    if rhythm is Rhythm.CLICKS and pitch is None:
        rhythm = None  # a bounce clicks anyway
    return pitch, rhythm


def _sentence(caption: str) -> str:
    return caption[0].upper() + caption[1:] + "."
