"""JSON from files we did not write: one object, no duplicated key, nothing that two readers could read differently."""

from __future__ import annotations

import json
import reprlib
from typing import Any, NoReturn

from vflash_ports.errors import CheckpointError


def parse_object(body: bytes, label: str) -> dict[str, Any]:
    """The JSON object in `body` (UTF-8, no byte order mark); `label` names the file in the `CheckpointError`."""
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{label}: not valid JSON ({brief(str(error))}); fetch or write the file again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{label}: must hold a JSON object, not {brief(value)}")
    return value


def brief(value: object) -> str:
    """`value` for a message: a hostile file must not be able to print itself whole."""
    return _BRIEF.repr(value)


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 120


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Python keeps the last of two equal keys without a word."""
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"duplicate key {brief(key)}")
        _check_text(key)
        if isinstance(value, str):
            _check_text(value)
        fields[key] = value
    return fields


def _check_text(text: str) -> None:
    r"""A lone surrogate ("\ud800") parses but has no UTF-8 form."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"lone surrogate in {brief(text)}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
