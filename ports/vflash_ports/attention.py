"""Attention: everything that depends only on the request is prepared once, then called hot."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

if TYPE_CHECKING:
    import torch


class SegmentKind(StrEnum):
    """What a run of packed rows holds."""

    TEXT = "text"
    CONDITION_VIDEO = "condition-video"
    CONDITION_AUDIO = "condition-audio"
    TARGET_AUDIO = "target-audio"
    TARGET_VIDEO = "target-video"


@frozen(kw_only=True)
class Segment:
    """Rows [start, start + rows) of the packed sequence; `grid` is (T, H, W) in tokens for visual rows, row-major."""

    kind: SegmentKind
    start: int
    rows: int
    grid: tuple[int, int, int] | None = None


@frozen(kw_only=True)
class AttentionLayout:
    """The geometry of one request, in packed order: text | conditions | target audio | target video."""

    segments: tuple[Segment, ...]
    rows: int
    heads: int
    head_dim: int
    blocks: int
    evaluations: int
    device: torch.device
    dtype: torch.dtype


@frozen(kw_only=True)
class AttentionReport:
    """What ran, for the receipt."""

    backend: str
    exact: bool
    dense_calls: int
    sparse_calls: int = 0
    details: Mapping[str, Any] = field(factory=dict)


class AttentionFn(Protocol):
    """Full bidirectional attention over one packed sequence, softmax scale 1/sqrt(head_dim)."""

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block: int, evaluation: int
    ) -> torch.Tensor:
        """q, k, v [rows, heads, head_dim], last stride 1, rows possibly strided -> the same shape and layout.

        The result may be written over q: the caller reads none of the three again.
        """
        ...

    def report(self) -> AttentionReport:
        """Counts so far; may read device counters, so it is called after the last evaluation."""
        ...


class Attention(Protocol):
    """A named backend. Unusable on the layout's device or dtype: `UnsupportedError` from `prepare`, with the cure."""

    @property
    def name(self) -> str: ...

    def held_bytes(self, layout: AttentionLayout) -> int:
        """Bytes that stay on the layout's device from the first `prepare` on, beside what calls allocate: 0 for most.

        From headers alone; raises what `prepare` would.
        """
        ...

    def prepare(self, layout: AttentionLayout) -> AttentionFn: ...
