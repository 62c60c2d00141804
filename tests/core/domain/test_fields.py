"""Strict fields: plain words for a wrong value, a hint for a misspelt name."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import field, frozen

from vflash.domain.fields import (
    Choice,
    errors_name_their_field,
    from_mapping,
    refuse_unknown,
    to_callback,
    to_path,
    whole_number,
)
from vflash_ports.errors import ContractError


class Colour(Choice):
    RED = "red"
    BLUE = "blue"


class Counting:
    def __call__(self, event: object) -> None: ...

    def two(self, event: object, more: object) -> None: ...


@frozen(kw_only=True, field_transformer=errors_name_their_field)
class Paint:
    colour: Colour = field(default=Colour.RED, converter=Colour)
    file: Path = field(converter=to_path)
    coats: int = field(default=1, validator=whole_number(1, 3))
    mixed: str = field(init=False, default="no")


def test_a_mapping_becomes_a_value():
    """Texts from TOML are converted as keywords are."""
    paint = from_mapping(Paint, "the paint", {"colour": "blue", "file": "wall", "coats": 2})
    assert (paint.colour, paint.file, paint.coats) == (Colour.BLUE, Path("wall"), 2)


@pytest.mark.parametrize("url", ["https://a.b/c.png", "http://a/c.png", "s3://a/c", "file:///c.png"])
def test_a_url_is_no_path(url):
    """As text, and as the path that pathlib makes of it; a colon alone is legal in a name."""
    for given in (url, Path(url)):
        with pytest.raises(ContractError, match=r"expected a path on this machine, got the URL .*; download it first"):
            to_path(given)
    assert to_path("a:b/c.png") == Path("a:b/c.png")
    assert to_path("folder/http:/c.png") == Path("folder/http:/c.png")


def test_a_callback_takes_one_argument():
    """Else the first progress would fail, after the encoders were paid for; builtins that do not say are trusted."""
    for right in (None, print, len, int, lambda event: None, lambda *events: None, [].append, Counting()):
        assert to_callback(right) is right
    for wrong in (lambda: None, lambda one, two: None, 5, "print", Counting().two):
        with pytest.raises(ContractError, match="expected a function that takes one PipelineProgress, or None"):
            to_callback(wrong)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("color", "did you mean 'colour'"),
        ("coat", "did you mean 'coats'"),
        ("zzz", "known fields: coats, colour, file"),
        ("mixed", "known fields"),
    ],
)
def test_an_unknown_name_is_refused_with_a_hint(name, hint):
    """The nearest legal name, or all of them; a field that nobody may set is unknown too."""
    with pytest.raises(ContractError, match=f"^unknown field '{name}' in the paint; {hint}"):
        from_mapping(Paint, "the paint", {"file": "wall", name: 1})


def test_a_missing_field_is_named():
    """Not a TypeError from inside."""
    with pytest.raises(ContractError, match=r"^the paint needs file$"):
        from_mapping(Paint, "the paint", {})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"colour": "green"}, "^colour: 'green' is not a Colour; choose one of red, blue$"),
        ({"colour": None}, "^colour: None is not a Colour"),
        ({"colour": ["red"]}, r"^colour: \['red'\] is not a Colour"),
        ({"file": ""}, "^file: expected a path, got ''$"),
        ({"file": 3}, "^file: expected a path, got 3$"),
        ({"coats": 4}, "^coats must be between 1 and 3, got 4$"),
        ({"coats": True}, "^coats must be a whole number, got True$"),
    ],
)
def test_a_wrong_value_is_refused_by_its_field_s_name(values, message):
    """Whether a converter or a validator found it."""
    with pytest.raises(ContractError, match=message):
        from_mapping(Paint, "the paint", {"file": "wall", **values})
    with pytest.raises(ContractError, match=message):
        Paint(**{"file": "wall", **values})


def test_names_are_compared_exactly():
    """Case matters; legal names pass."""
    refuse_unknown("it", ["a", "b"], {"b", "a", "c"})
    with pytest.raises(ContractError, match="unknown field 'A' in it"):
        refuse_unknown("it", ["A"], ["a", "b"])
