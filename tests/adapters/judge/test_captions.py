"""The caption grammar: what is written is read back, in both languages, and what is not in it is refused."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from vflash_adapters.judge.parse import parse_caption
from vflash_adapters.judge.write import Language, write_caption
from vflash_ports.errors import ContractError

maybe = st.none()
seconds = st.builds(
    SecondObject, shape=st.sampled_from(Shape), colour=st.sampled_from(Colour), corner=st.sampled_from(Corner)
)
described = st.builds(
    Description,
    shape=st.sampled_from(Shape),
    colour=maybe | st.sampled_from(Colour),
    size=maybe | st.sampled_from(Size),
    motion=st.sampled_from(Motion),
    background=maybe | st.sampled_from(Background),
    second=maybe | seconds,
    pitch=maybe | st.sampled_from(Pitch),
    rhythm=maybe | st.sampled_from(Rhythm),
)
from_pictures = st.builds(
    Description,
    motion=st.sampled_from(Motion),
    background=maybe | st.sampled_from(Background),
    second=maybe | seconds,
    pitch=maybe | st.sampled_from(Pitch),
    from_picture=st.just(True),
)


@settings(deadline=None, max_examples=300)
@given(description=described | from_pictures, language=st.sampled_from(Language), seed=st.integers(0, 10_000))
def test_a_written_caption_reads_back(description: Description, language: Language, seed: int) -> None:
    """Whatever the wording, parsing gives the description that was written."""
    assert parse_caption(write_caption(description, language, Random(seed))) == description


def test_without_a_generator_the_wording_is_fixed() -> None:
    """The plain wording is the same every time, and is what the docs quote."""
    scene = Description(shape=Shape.BALL, colour=Colour.RED, motion=Motion.BOUNCE, background=Background.BLUE)
    assert write_caption(scene, Language.ENGLISH) == "a red ball bounces on blue"
    assert write_caption(scene, Language.CHINESE) == "一个红色圆球在蓝色背景上弹跳"


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A RED ball, bounces on a blue background!", {"colour": Colour.RED, "background": Background.BLUE}),
        ("a square against red rises", {"shape": Shape.SQUARE, "background": Background.RED, "motion": Motion.UP}),
        ("with high clicks", {"pitch": Pitch.HIGH, "rhythm": Rhythm.CLICKS}),
        ("蓝色背景上有一个小星星变大", {"shape": Shape.STAR, "size": Size.SMALL, "background": Background.BLUE}),
    ],
)
def test_other_word_orders(caption: str, expected: dict[str, object]) -> None:
    """A colour belongs to the background after `on` or before `background`, else to the shape after it."""
    found = parse_caption(caption)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("caption", "named"),
    [
        ("a pink ball bounces", "pink"),
        ("a red ball bounces rises", "motion"),
        ("a black ball bounces", "black"),
        ("a red ball on a yellow background", "yellow"),
        ("a red ball with a green square", "corner"),
        ("a red ball in the top left corner", "second object"),
        ("a red ball with a large green square top left", "large"),
        ("a red ball, a green square, a blue star top left", "third"),
        ("一个粉色圆球", "粉色"),
        ("   ", "empty"),
    ],
)
def test_what_is_not_in_the_grammar_is_named(caption: str, named: str) -> None:
    """No word is skipped silently: the error names it."""
    with pytest.raises(ContractError, match=named):
        parse_caption(caption)
