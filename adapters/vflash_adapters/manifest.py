"""One way to seal, publish and check every manifest of the project.

A sealed manifest is a JSON object {format, version, sha256, body}; the digest covers the canonical form of the rest, so
a flipped bit, a cut file or a foreign version is an error, never a different meaning.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from attrs import frozen

from vflash_adapters.strict_json import brief, parse_object
from vflash_ports.errors import CheckpointError

Fields = Mapping[str, type | tuple[type, ...]]


@frozen(kw_only=True)
class ManifestKind:
    """What a manifest describes. `max_bytes` bounds the file before it is read."""

    format: str
    version: int
    max_bytes: int


def seal(kind: ManifestKind, body: Mapping[str, Any]) -> bytes:
    """The manifest's file content."""
    sealed = {"format": kind.format, "version": kind.version, "body": body}
    return _canonical({**sealed, "sha256": _digest(sealed)}) + b"\n"


def write_sealed(path: Path, kind: ManifestKind, body: Mapping[str, Any]) -> None:
    """Write a new manifest and put it on disk; an existing file is an error."""
    with path.open("xb") as file:
        file.write(seal(kind, body))
        file.flush()
        os.fsync(file.fileno())


def read_sealed(path: Path, kind: ManifestKind, fields: Fields) -> dict[str, Any]:
    """The body of a sealed manifest of `kind`, which has exactly `fields`.

    Raises `CheckpointError` naming the file if it is missing, oversized, of another kind or version, or altered.
    """
    try:
        with path.open("rb") as file:
            content = file.read(kind.max_bytes + 1)
    except OSError as error:
        if not path.parent.is_dir():
            raise CheckpointError(f"{path.parent}: no such folder, so no {kind.format} in it") from error
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); was its preparation completed?") from error
    if len(content) > kind.max_bytes:
        raise CheckpointError(f"{path}: larger than the {kind.max_bytes} bytes a {kind.format} manifest may have")
    sealed = require_fields(
        parse_object(content, str(path)), {"format": str, "version": int, "sha256": str, "body": dict}, str(path)
    )
    if (sealed["format"], sealed["version"]) != (kind.format, kind.version):
        raise CheckpointError(
            f"{path}: is {brief(sealed['format'])} version {sealed['version']}, expected {kind.format} "
            f"version {kind.version}; prepare it again with this release"
        )
    digest = sealed.pop("sha256")
    if content != seal(kind, sealed["body"]) or digest != _digest(sealed):
        raise CheckpointError(f"{path}: was altered after it was sealed; prepare it again")
    return require_fields(sealed["body"], fields, str(path))


def require_fields(value: Any, fields: Fields, label: str) -> dict[str, Any]:
    """`value` as an object with exactly these fields and types (bool is no int); raises `CheckpointError`."""
    if not isinstance(value, dict) or set(value) != set(fields):
        raise CheckpointError(f"{label}: expected exactly the fields {', '.join(sorted(fields))}, found {brief(value)}")
    for name, wanted in fields.items():
        accepted = wanted if isinstance(wanted, tuple) else (wanted,)
        if type(value[name]) not in accepted:
            names = " or ".join("null" if kind is NoneType else kind.__name__ for kind in accepted)
            raise CheckpointError(f"{label}: field {name} must be {names}, not {brief(value[name])}")
    return value


def _digest(sealed: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(sealed)).hexdigest()


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
