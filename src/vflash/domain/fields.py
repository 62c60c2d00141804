"""Strict fields: the same plain words for every wrong value, and a hint for every misspelt name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import attrs

from vflash_ports.errors import ContractError

T = TypeVar("T")
MAX_SHOWN_CHARS = 200
URL_SCHEMES = ("http:", "https:", "ftp:", "s3:", "file:")


def whole_number(low: int, high: int, *, name: str | None = None) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """A validator for an int in [low, high]; bool and float are refused rather than rounded."""

    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        label = name or attribute.name
        if isinstance(value, bool) or not isinstance(value, int):
            raise ContractError(f"{label} must be a whole number, got {shown(value)}")
        if not low <= value <= high:
            raise ContractError(f"{label} must be between {low} and {high}, got {shown(value)}")

    return check


def errors_name_their_field(_: type, attributes: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """A `field_transformer`: what a converter refuses is refused by the field's own name."""
    return [item.evolve(converter=_named(item.converter)) if item.converter else item for item in attributes]


def _named(convert: Any) -> Any:
    def named(value: Any, attribute: attrs.Attribute[Any]) -> Any:
        return argument(attribute.name, convert, value)

    return attrs.Converter(named, takes_field=True)


def argument(name: str, convert: Callable[[Any], T], value: Any) -> T:
    """`convert(value)`; what it refuses is refused by the argument's own name."""
    try:
        return convert(value)
    except ContractError as error:
        raise ContractError(f"{name}: {error}") from None


def to_path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ContractError(f"expected a path, got {shown(value)}")
    path = Path(value)
    if path.parts and path.parts[0] in URL_SCHEMES:
        raise ContractError(f"expected a path on this machine, got the URL {shown(value)}; download it first")
    return path


def require_file(path: Path, what: str) -> None:
    """Before anything heavy: `path` names a file that is there."""
    if not path.is_file():
        raise ContractError(f"{what} {path} {'is not a file' if path.exists() else 'does not exist'}")


def to_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ContractError(f"expected true or false, got {shown(value)}")
    return value


def to_callback(value: Any) -> Any:
    """A progress callback, or None for silence."""
    if value is not None and not _takes_one(value):
        raise ContractError(f"expected a function that takes one PipelineProgress, or None, got {shown(value)}")
    return value


def _takes_one(value: Any) -> bool:
    if not callable(value):
        return False
    try:
        signature = inspect.signature(value)
    except ValueError:  # written in C, and it does not say
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True


def shown(value: Any) -> str:
    """A wrong value, as it was given and never longer than a line or two."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}... (a {type(value).__name__})"


class Choice(StrEnum):
    """A StrEnum whose unknown values are user errors that list what is legal."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        article = "an" if cls.__name__[0] in "AEIOU" else "a"
        raise ContractError(f"{shown(value)} is not {article} {cls.__name__}; choose one of {', '.join(cls)}")


def refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise for any name in `given` that is not in `known`, naming the nearest legal one."""
    legal = sorted(known)
    for name in given:
        if name not in legal:
            near = difflib.get_close_matches(name, legal, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known fields: {', '.join(legal)}"
            raise ContractError(f"unknown field {name!r} in {what}{hint}")


def from_mapping(cls: type[T], what: str, values: Mapping[str, Any]) -> T:
    """Build an attrs class from outside data (TOML, JSON): unknown names are errors with a hint."""
    known = {field.name for field in attrs.fields(cls) if field.init}  # type: ignore[arg-type]
    refuse_unknown(what, values, known)
    missing = [
        field.name
        for field in attrs.fields(cls)  # type: ignore[arg-type]
        if field.init and field.default is attrs.NOTHING and field.name not in values
    ]
    if missing:
        raise ContractError(f"{what} needs {', '.join(missing)}")
    return cls(**values)
