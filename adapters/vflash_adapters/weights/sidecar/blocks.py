"""Which bytes of a shard make which block. Derived from the header alone, so a manifest cannot disagree with it."""

from __future__ import annotations

from attrs import frozen

from vflash_adapters.weights.safetensors_header import SafetensorsHeader
from vflash_adapters.weights.sidecar.planes import PLANES_BY_DTYPE, Planes, coded_bytes
from vflash_ports.errors import ContractError

MIN_CODED_TENSOR = 64 * 1024  # below it a frame's fixed cost eats the saving
MIN_BLOCK, MAX_BLOCK = 4096, 4 * 2**20
DEFAULT_BLOCK = 2**20  # ratios are equal from 256 KiB to 16 MiB; 1 MiB fits the second-level cache


@frozen(kw_only=True)
class Block:
    """Bytes [begin, begin + length) of the original file, inside one tensor; `planes` None is stored as it is."""

    begin: int
    length: int
    dtype: str
    planes: Planes | None

    @property
    def coded_plain(self) -> int:
        """Bytes of the plane that is coded, before coding."""
        return coded_bytes(self.planes, self.length) if self.planes else 0


def checked_block_bytes(block_bytes: int) -> int:
    """Raises `ContractError` unless the size is a multiple of 4 KiB from 4 KiB to 4 MiB."""
    if type(block_bytes) is not int or block_bytes % MIN_BLOCK or not MIN_BLOCK <= block_bytes <= MAX_BLOCK:
        raise ContractError(f"block_bytes must be a multiple of {MIN_BLOCK} up to {MAX_BLOCK}, not {block_bytes!r}")
    return block_bytes


def plan_blocks(header: SafetensorsHeader, block_bytes: int) -> list[Block]:
    """Blocks of every non-empty tensor in payload order; they tile the payload and never cross a tensor's end."""
    blocks = []
    for tensor in header.tensors.values():
        planes = PLANES_BY_DTYPE.get(tensor.dtype) if tensor.byte_count >= MIN_CODED_TENSOR else None
        for begin in range(tensor.begin, tensor.end, block_bytes):
            length = min(block_bytes, tensor.end - begin)
            blocks.append(Block(begin=begin, length=length, dtype=tensor.dtype, planes=planes))
    return blocks
