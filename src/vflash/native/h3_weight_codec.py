"""Lossless weight compression: `prepare(source, sidecar)`. Needs `vflash[weight-io]`."""

from vflash_adapters.weights.sidecar.merges import MergeChoice
from vflash_adapters.weights.sidecar.prepare import Prepared, prepare

__all__ = ["MergeChoice", "Prepared", "prepare"]
