"""Where an owning reader gets the bytes of a shard: from the file itself, or decoded from a sidecar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from vflash_adapters.weights.byte_file import Bytes


class ShardPayload(Protocol):
    """Offsets are those of the original safetensors file, whatever the bytes are made from."""

    def fill(self, shard: int, begin: int, out: Bytes) -> None:
        """Bytes [begin, begin + len(out)) of shard number `shard`, whole tensors only, checked, into `out`."""
        ...

    def check_unchanged(self) -> None:
        """Raise `CheckpointError` if a file behind this payload is no longer the one that was opened."""
        ...

    def read_modes(self) -> Mapping[str, str]:
        """How each file touched so far was read, by file name, for the receipt."""
        ...

    def close(self) -> None: ...
