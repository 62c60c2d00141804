"""Conditioning reused by content: one entry, for as long as its caller asks for it under the same scope."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import define, evolve, field, frozen

from vflash.domain.fields import shown
from vflash.stages.encode import Conditioning
from vflash.stages.gather import Gathered, tensors_of
from vflash_ports.errors import ContractError

MAX_BYTES = 128 * 2**20
IDLE_SECONDS = 3600.0


class ConditioningReuseScope:
    """An opaque token. Requests that are given the same one may reuse each other's conditioning, if prompt, inputs and
    canvas are equal in content."""


def to_scope(value: Any) -> ConditioningReuseScope | None:
    if value is not None and not isinstance(value, ConditioningReuseScope):
        raise ContractError(f"expected a ConditioningReuseScope() that requests share, or None, got {shown(value)}")
    return value


@frozen(kw_only=True, eq=False)
class _Entry:
    scope: ConditioningReuseScope
    digest: str
    conditioning: Conditioning
    used_at: float


@define(kw_only=True, eq=False)
class ReuseCache:
    """Holds at most one conditioning of at most `max_bytes`, in host memory; gone after `idle_seconds` without use.

    A request without a scope, under another scope or with other content clears it. `status` says what the last
    request got: `off`, `hit`, `miss`, or `capacity-bypass` for one too large to keep.
    """

    max_bytes: int = MAX_BYTES
    idle_seconds: float = IDLE_SECONDS
    clock: Callable[[], float] = time.monotonic
    status: str = field(default="off", init=False)
    _entry: _Entry | None = field(default=None, init=False)

    def conditioning(
        self, scope: ConditioningReuseScope | None, digest: str, encode: Callable[[], Conditioning]
    ) -> Conditioning:
        entry, self._entry = self._entry, None  # whatever fails below leaves nothing behind
        if scope is None:
            self.status = "off"
            return encode()
        now = self.clock()
        fresh = entry is not None and now - entry.used_at <= self.idle_seconds
        if entry is not None and fresh and entry.scope is scope and entry.digest == digest:
            self.status = "hit"
            self._entry = evolve(entry, used_at=now)
            return entry.conditioning
        made = encode()
        size = sum(tensor.nbytes for tensor in _tensors(made))
        self.status = "miss" if size <= self.max_bytes else "capacity-bypass"
        if size <= self.max_bytes:
            self._entry = _Entry(scope=scope, digest=digest, conditioning=_on_host(made), used_at=now)
        return made

    def clear(self) -> None:
        self._entry = None


def content_digest(prompt: str, gathered: Gathered) -> str:
    """Of everything the encoders see: the prompt, the canvas, and every input's own values in order."""
    digest = hashlib.sha256(f"{gathered.plan.mode}\0{gathered.plan.canvas}\0{prompt}\0".encode())
    for item in gathered.inputs:
        digest.update(type(item).__name__.encode() + str(getattr(item, "last", "")).encode())
        for tensor in tensors_of(item):
            digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _tensors(conditioning: Conditioning) -> Iterator[torch.Tensor]:
    yield from (conditioning.text.embeds, conditioning.text.tags)
    yield from (*conditioning.conditions.video, *conditioning.conditions.audio)


def _on_host(conditioning: Conditioning) -> Conditioning:
    """Condition latents are on the CPU anyway."""
    return evolve(conditioning, text=evolve(conditioning.text, embeds=conditioning.text.embeds.cpu()))
