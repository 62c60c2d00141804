"""Canvas geometry: which sizes are legal, and how pictures are put onto one."""

from __future__ import annotations

from attrs import frozen

from vflash_ports.errors import ContractError

MAX_ASPECT = 4
LONG_EDGE_MAX = 2048


@frozen(kw_only=True)
class Canvas:
    """A picture size in pixels."""

    width: int
    height: int

    @property
    def pixels(self) -> int:
        return self.width * self.height

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def check_canvas(canvas: Canvas, *, multiple: int) -> Canvas:
    """An explicit canvas: positive multiples of `multiple`, within 1:4 and 4:1, long edge at most 2048."""
    for name, value in (("width", canvas.width), ("height", canvas.height)):
        if value <= 0 or value % multiple:
            near = max(multiple, round(value / multiple) * multiple)
            raise ContractError(f"{name} must be a positive multiple of {multiple}, got {value}; the nearest is {near}")
    if max(canvas.width, canvas.height) > LONG_EDGE_MAX:
        raise ContractError(f"the long edge of a canvas is at most {LONG_EDGE_MAX} pixels, got {canvas}")
    check_aspect("canvas", canvas.width, canvas.height)
    return canvas


def check_aspect(what: str, width: float, height: float) -> None:
    if width <= 0 or height <= 0:
        raise ContractError(f"{what} must have a positive size, got {width}x{height}")
    if width > MAX_ASPECT * height or height > MAX_ASPECT * width:
        raise ContractError(f"{what} must be within 1:{MAX_ASPECT} and {MAX_ASPECT}:1, got {width}x{height}")


def canvas_for_aspect(width: float, height: float, *, multiple: int, short_edge: int, max_pixels: int) -> Canvas:
    """The model's own canvas for an aspect ratio: short edge first, then the area cap, then rounding to `multiple`."""
    check_aspect("without width and height, the aspect of the first picture or video", width, height)
    ratio = width / height
    w, h = (short_edge * ratio, float(short_edge)) if ratio >= 1.0 else (float(short_edge), short_edge / ratio)
    area = w * h
    if area > max_pixels:
        scale = (max_pixels / area) ** 0.5
        w, h = w * scale, h * scale
    return Canvas(width=round_to(w, multiple), height=round_to(h, multiple))


def reference_picture_size(width: int, height: int, *, multiple: int, short_edge: int) -> Canvas:
    """A reference picture keeps its aspect: short edge to `short_edge`, upscaled if small, no area cap."""
    check_aspect("a reference picture", width, height)
    scale = short_edge / min(width, height)
    return Canvas(width=round_to(width * scale, multiple), height=round_to(height * scale, multiple))


def round_to(value: float, multiple: int) -> int:
    """The nearest multiple, at least one of it; halves go to even as the reference rounds."""
    return max(multiple, round(value / multiple) * multiple)
