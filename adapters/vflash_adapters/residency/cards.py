"""Which cards hold the whole stack of a released model, as data."""

from __future__ import annotations

import torch
from attrs import frozen

from vflash_ports.errors import UnsupportedError

GIB = 2**30


@frozen(kw_only=True)
class Card:
    """A CUDA device: its compute capability and all of its memory."""

    capability: tuple[int, int]
    total_bytes: int


@frozen(kw_only=True)
class ResidentLimit:
    """Cards of `capability` hold the stack from `total_bytes` on: beside it the activations of a request must fit."""

    capability: tuple[int, int]
    total_bytes: int


RESIDENT_LIMITS = (
    ResidentLimit(capability=(9, 0), total_bytes=75 * GIB),
    ResidentLimit(capability=(12, 0), total_bytes=90 * GIB),
)
LARGE_STACK_BYTES = 8 * GIB
"""A released model weighs more than this in every precision; what is smaller is tried on any card it fits."""
CURE = "choose weight_residency 'block-ring'"


def read_card(device: torch.device) -> Card:
    properties = torch.cuda.get_device_properties(device)
    return Card(capability=(properties.major, properties.minor), total_bytes=properties.total_memory)


def check_resident(card: Card, stack_bytes: int, limits: tuple[ResidentLimit, ...] = RESIDENT_LIMITS) -> None:
    """Raises `UnsupportedError` if the card is not one that keeps `stack_bytes` of block weights for good."""
    what = f"weight_residency 'resident' keeps {stack_bytes / GIB:.1f} GiB of block weights on the device"
    has = f"this card is sm_{card.capability[0]}{card.capability[1]} with {card.total_bytes / GIB:.1f} GiB"
    if stack_bytes > LARGE_STACK_BYTES:
        floor = next((limit.total_bytes for limit in limits if limit.capability == card.capability), None)
        if floor is None or card.total_bytes < floor:
            wanted = " or ".join(
                f"sm_{limit.capability[0]}{limit.capability[1]} with at least {limit.total_bytes // GIB} GiB"
                for limit in limits
            )
            raise UnsupportedError(f"{what}, which takes {wanted}; {has}: {CURE}")
    if stack_bytes >= card.total_bytes:
        raise UnsupportedError(f"{what}; {has}: {CURE}")
