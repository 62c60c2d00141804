"""Weights read into owned buffers, from the original file or from a sidecar: `SequentialWeights`."""

from vflash_adapters.weights.sequential import SequentialWeights

__all__ = ["SequentialWeights"]
