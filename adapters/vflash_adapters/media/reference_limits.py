"""How much of a stranger's file is read at all."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from vflash_ports.errors import MediaError


@frozen(kw_only=True)
class ReferenceLimits:
    """Checked from the file's size and header, before anything is decoded."""

    picture_bytes: int = 128 << 20
    picture_pixels: int = 64_000_000
    media_bytes: int = 2 << 30
    frame_pixels: int = 4096 * 2304
    duration_s: float = 3600.0
    clip_bytes: int = 4 << 30
    decode_s: float = 120.0


def require_file(path: Path, limit_bytes: int, *, what: str) -> None:
    """`MediaError` unless `path` is a regular file, not empty, within the limit; `what` is what its reader calls it."""
    if not path.exists():
        raise MediaError(f"{what} {path} does not exist")
    if not path.is_file():
        raise MediaError(f"{what} {path} is not a regular file")
    size = path.stat().st_size
    if size == 0:
        raise MediaError(f"{what} {path} is empty")
    if size > limit_bytes:
        raise MediaError(f"{what} {path} has {size} bytes, more than the {limit_bytes} that are read: make it smaller")
