"""The reader that integrators import by name: one file, explicit workers, optionally a sidecar."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import torch

from vflash_adapters.arguments import path_argument
from vflash_adapters.weights.buffered_source import BufferedWeights
from vflash_adapters.weights.owned_reader import OwnedReader
from vflash_ports.errors import ContractError
from vflash_ports.weights import WeightSource


class SequentialWeights:
    """Read an immutable safetensors file (or sharded component) into exclusively owned CPU buffers.

        with SequentialWeights(source, read_workers=4, compressed_directory=sidecar) as weights:
            tensor = weights.get_tensor("weight")

    `read_workers` is 1, 2, 4 or 8. `compressed_directory` names a sidecar prepared from `source`; without it the
    original bytes are read. A tensor stays valid after the scope and keeps its whole shard buffer.
    """

    def __init__(self, source: Path, read_workers: int = 4, compressed_directory: Path | None = None) -> None:
        self._source = _choose(source, read_workers, compressed_directory)
        self._scope = ExitStack()
        self._reader: OwnedReader | None = None

    def __enter__(self) -> SequentialWeights:
        if self._reader is not None:
            raise ContractError("these weights are open already; make another SequentialWeights")
        reader = self._scope.enter_context(self._source.open())
        assert isinstance(reader, OwnedReader)
        self._reader = reader
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader = None
        self._scope.__exit__(kind, error, trace)

    def keys(self) -> list[str]:
        """Tensor names, in the order in which reading is fastest."""
        return list(self._source.specs())

    def get_tensor(self, name: str) -> torch.Tensor:
        """The named tensor on the CPU; raises `CheckpointError` for a name the file lacks."""
        if self._reader is None:
            raise ContractError(f"{name}: weights are read inside `with SequentialWeights(...) as weights:`")
        if not isinstance(name, str):
            raise ContractError(f"name: expected a tensor's name, got a {type(name).__name__}")
        return self._reader.get_tensor(name)


def _choose(source: Path, read_workers: int, compressed_directory: Path | None) -> WeightSource:
    original = path_argument("source", source)
    if compressed_directory is None:
        return BufferedWeights(original, read_workers=read_workers)
    from vflash_adapters.weights.sidecar.source import SidecarWeights

    return SidecarWeights(
        original, path_argument("compressed_directory", compressed_directory), read_workers=read_workers
    )
