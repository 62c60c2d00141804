"""Residency: where the block stack lives and how block i becomes ready on its device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from attrs import frozen

from vflash_ports.observer import Observer
from vflash_ports.weights import TensorSpec

if TYPE_CHECKING:
    import torch

Block = TypeVar("Block")
Block_co = TypeVar("Block_co", covariant=True)


@frozen(kw_only=True)
class ResidencyMemory:
    """Bytes held by the stack, by place; `block_bytes` is what one block moves."""

    device_weight_bytes: int
    block_bytes: int
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

    def blocks(self, observer: Observer, *, evaluation: int) -> Iterator[Block_co]:
        """One pass over the stack in order; a yielded block is ready on its device until the next is asked for.

        One pass at a time: starting another ends the one before, also where an exception left it unfinished. The
        observer sees a ring's copies and waits as the phases `ring_copy` and `ring_wait`. Raises `ClosedError` after
        `close`.
        """
        ...

    def memory(self) -> ResidencyMemory: ...

    def close(self) -> None:
        """Wait for the device, then release; idempotent. A closed stack holds no weights.

        If the device cannot be waited for, everything is kept and `ExecutionError` asks for the process to end.
        """
        ...


class Residency(Protocol):
    """`resident` or `block-ring`. Both yield bit-equal blocks."""

    @property
    def name(self) -> str: ...

    def check(self, device: torch.device, stack_bytes: int) -> None:
        """Raises `UnsupportedError`, with the cure, before any weight is read, if this residency is not for a stack of
        `stack_bytes` on this device."""
        ...

    def load(
        self, loader: BlockLoader, bind: Callable[[Mapping[str, torch.Tensor]], Block], device: torch.device
    ) -> BlockStack[Block]:
        """Load all blocks. `bind` turns one block's tensors into the callable the model runs; it is called once per
        block (resident) or once per device slot (ring), and must keep views only."""
        ...
