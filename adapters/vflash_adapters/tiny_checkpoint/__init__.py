"""A tiny random MiniMax-H3 in the released layout, for demos and tests."""

from __future__ import annotations

from vflash_adapters.tiny_checkpoint.dimensions import OTHER, SMALL, Dimensions, Variant
from vflash_adapters.tiny_checkpoint.layout import write_tiny_checkpoint
from vflash_adapters.tiny_checkpoint.weights import StoredDtype

__all__ = ["OTHER", "SMALL", "Dimensions", "StoredDtype", "Variant", "write_tiny_checkpoint"]
