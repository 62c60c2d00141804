"""A value of a wrong type is refused where it is given, in every field of every class that a user fills."""

from __future__ import annotations

import types
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash.domain.fields import MAX_SHOWN_CHARS, shown
from vflash.domain.request import Reference, VideoRequest
from vflash.settings import Settings
from vflash_adapters.media.encoding import Encoding
from vflash_ports.errors import ContractError

FILLED: dict[type, dict[str, Any]] = {
    Settings: {"model_dir": "model"},
    VideoRequest: {"prompt": "rain"},
    Reference: {"kind": "picture", "path": "a.png"},
    Encoding: {},
}
"""Class -> what it needs."""
FIELDS = [(made, item.name) for made in FILLED for item in attrs.fields(made) if item.init]
NAMED_OTHERWISE = {"timeout_s": "timeout"}

ANYTHING = st.one_of(
    st.builds(object),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(max_size=8),
    st.lists(st.builds(object), min_size=1, max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from([len, Path, {1}, 10**400, "a\0b"]),
)


def fits(value: Any, hint: Any) -> bool:
    """Whether `value` is of a type that a field annotated as `hint` takes; the field may refuse it all the same."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(fits(value, one) for one in get_args(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple) and all(fits(item, get_args(hint)[0]) for item in value)
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float)
    if isinstance(hint, type) and issubclass(hint, Path | Enum | Reference):
        return isinstance(value, str | Path)
    return isinstance(value, hint)


def refusal(made: type, name: str, value: Any) -> str | None:
    """What is said to the value; None if it is taken. Another error than the project's own is a failure."""
    try:
        made(**FILLED[made] | {name: value})
    except ContractError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("made", "name"), FIELDS, ids=lambda item: getattr(item, "__name__", item))
@settings(deadline=None, max_examples=60)
@given(value=ANYTHING)
def test_a_wrong_type_is_refused_by_the_name_of_its_field(made, name, value):
    """Never converted, never kept, never a bare TypeError; and a value of a right type is taken or refused in words."""
    hint = get_type_hints(made)[name]
    told = refusal(made, name, value)
    if told is None:
        assert fits(value, hint), f"{made.__name__}({name}={value!r}) was taken"
        assert fits(getattr(made(**FILLED[made] | {name: value}), name), hint)
    else:
        assert NAMED_OTHERWISE.get(name, name) in told
        assert len(told) < 2 * MAX_SHOWN_CHARS + 500


def test_a_wrong_value_is_shown_short():
    """A picture's bytes, given where its path belongs, would fill the screen."""
    assert shown("rain") == "'rain'"
    assert shown(bytes(10**6)) == f"{repr(bytes(100))[:MAX_SHOWN_CHARS]}... (a bytes)"
    with pytest.raises(ContractError, match=r"^first_frame: expected a path, got b'.{198}\.\.\. \(a bytes\)$"):
        VideoRequest(prompt="rain", first_frame=b"." * 10**6)


@pytest.mark.parametrize("assets", [None, "folder"])
def test_a_profile_is_a_name_wherever_the_weights_come_from(assets):
    """Assets bring a profile of their own; a name beside them is still checked here."""
    for wrong in (5, ["base16"], "base17"):
        with pytest.raises(ContractError, match=r"profile .* is unknown; choose one of base16"):
            Settings(model_dir="model", profile=wrong, assets=assets)


def test_numbers_come_as_text_only_where_a_word_may_stand_in_their_place():
    """`adapter_alpha` is a number or "rank", so the command line gives it as text; a strength is a number."""
    assert Settings(model_dir="model", adapter="a", adapter_alpha="8").adapter_alpha == 8.0
    assert Settings(model_dir="model", adapter="a", adapter_alpha=8).adapter_alpha == 8.0
    for wrong in ("many", "", "nan", "inf", "-1", 0, True, 10**400):
        with pytest.raises(ContractError, match=r'^adapter_alpha: must be a positive number, or "rank", got'):
            Settings(model_dir="model", adapter="a", adapter_alpha=wrong)
    for wrong in ("2", "", float("nan"), float("inf"), -1, 0, True, 10**400):
        with pytest.raises(ContractError, match=r"^adapter_strength: must be a positive number, got"):
            Settings(model_dir="model", adapter="a", adapter_strength=wrong)
