"""What every exact backend shares: it keeps nothing between calls but a count."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import define

from vflash_ports.attention import AttentionLayout, AttentionReport

DenseKernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@define(kw_only=True, eq=False)
class ExactAttentionFn:
    """The `AttentionFn` of an exact backend: `kernel` computes all of [rows, heads, head_dim] at every block."""

    backend: str
    layout: AttentionLayout
    kernel: DenseKernel
    calls: int = 0

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block: int, evaluation: int
    ) -> torch.Tensor:
        assert q.shape == k.shape == v.shape == (self.layout.rows, self.layout.heads, self.layout.head_dim)
        self.calls += 1
        return self.kernel(q, k, v)

    def report(self) -> AttentionReport:
        return AttentionReport(backend=self.backend, exact=True, dense_calls=self.calls)
