"""What a clip of the small world shows and sounds like, in the grammar's own terms."""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen


class Shape(StrEnum):
    BALL = "ball"
    SQUARE = "square"
    TRIANGLE = "triangle"
    STAR = "star"
    RING = "ring"


class Colour(StrEnum):
    RED = "red"
    ORANGE = "orange"
    YELLOW = "yellow"
    GREEN = "green"
    CYAN = "cyan"
    BLUE = "blue"
    PURPLE = "purple"
    WHITE = "white"


class Background(StrEnum):
    BLACK = "black"
    GREY = "grey"
    WHITE = "white"
    RED = "red"
    GREEN = "green"
    BLUE = "blue"
    PURPLE = "purple"


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Motion(StrEnum):
    LEFT = "left"
    RIGHT = "right"
    UP = "up"
    DOWN = "down"
    CIRCLE = "circle"
    BOUNCE = "bounce"
    GROW = "grow"
    SHRINK = "shrink"


class Corner(StrEnum):
    TOP_LEFT = "top left"
    TOP_RIGHT = "top right"
    BOTTOM_LEFT = "bottom left"
    BOTTOM_RIGHT = "bottom right"


class Pitch(StrEnum):
    LOW = "low"
    MIDDLE = "middle"
    HIGH = "high"


class Rhythm(StrEnum):
    STEADY = "steady"
    SLOW = "slow"
    FAST = "fast"
    CLICKS = "clicks"


@frozen(kw_only=True)
class SecondObject:
    """A small object at rest in a corner."""

    shape: Shape
    colour: Colour
    corner: Corner


@frozen(kw_only=True)
class Description:
    """A caption's meaning; None where the caption says nothing. A full one names a whole class of clips.

    `from_picture`: the subject is the one in `<Picture 1>`, so the caption names neither its shape nor its colour.
    """

    shape: Shape | None = None
    colour: Colour | None = None
    size: Size | None = None
    motion: Motion | None = None
    background: Background | None = None
    second: SecondObject | None = None
    pitch: Pitch | None = None
    rhythm: Rhythm | None = None
    from_picture: bool = False
