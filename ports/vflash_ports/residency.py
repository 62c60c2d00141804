"""Residency: where the block stack lives and how block i becomes ready on its device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from attrs import frozen

from vflash_ports.weights import TensorSpec

if TYPE_CHECKING:
    import torch

Block = TypeVar("Block")
Block_co = TypeVar("Block_co", covariant=True)


@frozen(kw_only=True)
class ResidencyMemory:
    """Bytes held by the stack, by place."""

    device_weight_bytes: int
    pinned_payload_bytes: int = 0
    pinned_allocated_bytes: int = 0


class BlockLoader(Protocol):
    """Supplies the packed tensors of each block; all blocks share names, dtypes and shapes."""

    @property
    def count(self) -> int: ...

    def specs(self) -> Mapping[str, TensorSpec]:
        """The packed tensors of any one block."""
        ...

    def load_into(self, index: int, out: Mapping[str, torch.Tensor]) -> None:
        """Fill caller-owned tensors (one per spec, on CPU or on the compute device) with block `index`."""
        ...


class BlockStack(Protocol[Block_co]):
    """The stack of one denoiser."""

    def blocks(self) -> Iterator[Block_co]:
        """One pass over the stack in order; a yielded block is ready on its device until the next is asked for."""
        ...

    def memory(self) -> ResidencyMemory: ...

    def close(self) -> None:
        """Wait for the device, then release; idempotent. A closed stack holds no weights."""
        ...


class Residency(Protocol):
    """`resident` or `block-ring`. Both yield bit-equal blocks."""

    @property
    def name(self) -> str: ...

    def check(self, device: torch.device) -> None:
        """Raises `UnsupportedError`, with the cure, before any weight is read, if the device cannot hold it."""
        ...

    def load(
        self, loader: BlockLoader, bind: Callable[[Mapping[str, torch.Tensor]], Block], device: torch.device
    ) -> BlockStack[Block]:
        """Load all blocks. `bind` turns one block's tensors into the callable the model runs; it is called once per
        block (resident) or once per device slot (ring), and must keep views only."""
        ...
