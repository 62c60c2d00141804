"""What a request gives back to its caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import frozen


@frozen(kw_only=True, eq=False)
class VideoResult:
    """One delivered clip. `stages` nests outer and inner seconds: never add both. `receipt` is what was written."""

    path: Path
    elapsed_seconds: float
    stages: dict[str, Any]
    receipt: dict[str, Any]


@frozen(kw_only=True, eq=False)
class EncodeResult:
    """One sealed conditioning bundle."""

    path: Path
    bundle_id: str
    elapsed_seconds: float
    stages: dict[str, Any]
