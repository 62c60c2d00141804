"""The shapes as signed distances, for whoever draws them and whoever recognises them.

Every shape has the area of a disc of radius 1, so that size does not depend on shape. Round shapes are a band around a
radius; the others fold the angle into one sector and measure to one edge, so one formula serves all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import astuple, frozen

from vflash_adapters.judge.description import Shape

if TYPE_CHECKING:
    import torch


@frozen(kw_only=True)
class Outline:
    """`sector` is 0 for round shapes: |radius - offset| - half. Else the sector's angle, whose axis points up
    (`up` = 1) or down (-1), and one edge at `offset` along the normal (`across`, `along`)."""

    sector: float
    up: float
    across: float
    along: float
    offset: float
    half: float


def outlines(shapes: Sequence[Shape]) -> list[tuple[float, ...]]:
    """One row of numbers a shape, for `signed_distance`."""
    return [astuple(_OUTLINE[shape]) for shape in shapes]


def signed_distance(rows: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """About the distance to the outline, in radii, negative inside. `rows` [..., 6] broadcasts against `x` (right) and
    `y` (down), centred on the shape."""
    import torch

    sector, up, across, along, offset, half = rows.unbind(-1)
    radius = torch.hypot(x, y)
    angle = torch.atan2(x, -y * up)
    folded = (angle - sector * torch.round(angle / sector.clamp(min=1e-6))).abs()
    edge = radius * (torch.sin(folded) * across + torch.cos(folded) * along) - offset
    return torch.where(sector > 0, edge, (radius - offset).abs() - half)


def extent(shape: Shape) -> tuple[float, float]:
    """How far the shape reaches from its centre, (across, down): the larger side each, in radii."""
    return _EXTENT[shape]


_RING_INNER = 0.6
_STAR_INNER = 0.5
_SQUARE_HALF = math.sqrt(math.pi) / 2.0
_TRIANGLE_INRADIUS = math.sqrt(math.pi / (3.0 * math.sqrt(3.0)))
_RING_OUTER = 1.0 / math.sqrt(1.0 - _RING_INNER**2)
_STAR_TIP = math.sqrt(math.pi / (5.0 * _STAR_INNER * math.sin(math.pi / 5.0)))


def _star() -> Outline:
    """The edge from a tip (0, tip) to the notch beside it."""
    notch_x = _STAR_INNER * _STAR_TIP * math.sin(math.pi / 5.0)
    notch_y = _STAR_INNER * _STAR_TIP * math.cos(math.pi / 5.0)
    length = math.hypot(_STAR_TIP - notch_y, notch_x)
    across, along = (_STAR_TIP - notch_y) / length, notch_x / length
    return Outline(sector=math.tau / 5.0, up=1.0, across=across, along=along, offset=along * _STAR_TIP, half=0.0)


def _edge_on(sides: int, inradius: float, up: float) -> Outline:
    return Outline(sector=math.tau / sides, up=up, across=0.0, along=1.0, offset=inradius, half=0.0)


def _round(middle: float, half: float) -> Outline:
    return Outline(sector=0.0, up=1.0, across=0.0, along=0.0, offset=middle, half=half)


_OUTLINE = {
    Shape.BALL: _round(0.0, 1.0),
    Shape.SQUARE: _edge_on(4, _SQUARE_HALF, 1.0),
    Shape.TRIANGLE: _edge_on(3, _TRIANGLE_INRADIUS, -1.0),
    Shape.STAR: _star(),
    Shape.RING: _round(0.5 * _RING_OUTER * (1.0 + _RING_INNER), 0.5 * _RING_OUTER * (1.0 - _RING_INNER)),
}
_EXTENT = {
    Shape.BALL: (1.0, 1.0),
    Shape.SQUARE: (_SQUARE_HALF, _SQUARE_HALF),
    Shape.TRIANGLE: (math.sqrt(3.0) * _TRIANGLE_INRADIUS, 2.0 * _TRIANGLE_INRADIUS),
    Shape.STAR: (_STAR_TIP, _STAR_TIP),
    Shape.RING: (_RING_OUTER, _RING_OUTER),
}
