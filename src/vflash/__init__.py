"""Vflash runs MiniMax-H3: a prompt and pictures in, an MP4 with sound out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vflash.pipeline import H3Pipeline as H3Pipeline
    from vflash.pipeline import VideoRequest as VideoRequest

__version__ = "0.1.0"
_LAZY = ("H3Pipeline", "VideoRequest")


def __getattr__(name: str) -> Any:
    """`vflash.H3Pipeline` without paying for it at `import vflash`."""
    if name in _LAZY:
        return getattr(importlib.import_module("vflash.pipeline"), name)
    raise AttributeError(f"module 'vflash' has no attribute {name!r}")
