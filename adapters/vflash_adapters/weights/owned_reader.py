"""An open scope whose tensors live in memory of this process, independent of the page cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch

from vflash_adapters.weights.byte_file import ALIGNMENT, aligned_bytes
from vflash_adapters.weights.checkpoint import Checkpoint, Location
from vflash_adapters.weights.shard_payload import ShardPayload
from vflash_adapters.weights.tensor_bytes import byte_view, empty_tensor, typed_view
from vflash_ports.errors import ContractError

HELD_SHARDS = 2  # a block may straddle two shards; asked for in `specs()` order, each shard is read once


class OwnedReader:
    """`get_tensor` reads a whole shard into one owned buffer and hands out views of it; a view kept beyond the scope
    keeps its whole shard alive. `read_into` reads only the tensor's own bytes, straight into the caller's memory.

    At most `HELD_SHARDS` buffers are held by the reader itself; tensors of one scope share storage.
    """

    def __init__(self, checkpoint: Checkpoint, payload: ShardPayload) -> None:
        self._checkpoint = checkpoint
        self._payload = payload
        self._buffers: OrderedDict[int, torch.Tensor] = OrderedDict()
        self._open = True

    def get_tensor(self, name: str) -> torch.Tensor:
        location = self._locate(name)
        spec = self._checkpoint.specs[name]
        if not spec.byte_count:
            return empty_tensor(spec)
        begin = location.tensor.begin - self._buffer_start(location.shard)
        return typed_view(self._buffer(location.shard)[begin : begin + spec.byte_count], spec)

    def read_into(self, name: str, out: torch.Tensor) -> None:
        location = self._locate(name)
        target = byte_view(out, self._checkpoint.specs[name])
        if len(target):
            self._payload.fill(location.shard, location.tensor.begin, target.numpy())
            self._payload.check_unchanged()

    def read_modes(self) -> Mapping[str, str]:
        return self._payload.read_modes()

    def check_unchanged(self) -> None:
        self._payload.check_unchanged()

    def close(self) -> None:
        self._open = False
        self._buffers.clear()
        self._payload.close()

    def _locate(self, name: str) -> Location:
        if not self._open:
            raise ContractError(f"{name}: asked for after the reading scope ended; open the source again")
        location = self._checkpoint.locate(name)
        self._payload.check_unchanged()
        return location

    def _buffer(self, shard: int) -> torch.Tensor:
        if shard in self._buffers:
            self._buffers.move_to_end(shard)
            return self._buffers[shard]
        while len(self._buffers) >= HELD_SHARDS:
            self._buffers.popitem(last=False)
        header = self._checkpoint.shards[shard].header
        start = self._buffer_start(shard)
        owned = aligned_bytes(header.file_bytes - start)
        self._payload.fill(shard, header.data_start, owned[header.data_start - start : header.file_bytes - start])
        self._payload.check_unchanged()
        self._buffers[shard] = torch.from_numpy(owned)
        return self._buffers[shard]

    def _buffer_start(self, shard: int) -> int:
        """File offset of the buffer's first byte: page-aligned, so that direct reads need no copy."""
        return self._checkpoint.shards[shard].header.data_start // ALIGNMENT * ALIGNMENT
