"""Which canvases are legal, and which canvas a picture asks for."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vflash.domain.canvas import Canvas, canvas_for_aspect, check_canvas, reference_picture_size, round_to
from vflash_ports.errors import ContractError

RELEASED = {"multiple": 32, "short_edge": 768, "max_pixels": 768 * 1344}
SIZES = st.integers(16, 8192)


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (16, 9, "1344x768"),
        (9, 16, "768x1344"),
        (4, 3, "1024x768"),
        (1, 1, "768x768"),
        (21, 9, "1536x672"),
        (4, 1, "2016x512"),
        (1, 4, "512x2016"),
        (1920, 1080, "1344x768"),
        (90, 50, "1376x768"),
    ],
)
def test_the_canvas_of_an_aspect(width, height, expected):
    """Short edge 768, then the area cap, then multiples of 32: the released model's own sizes."""
    assert str(canvas_for_aspect(width, height, **RELEASED)) == expected


def test_a_checkpoint_may_name_another_canvas():
    """A smaller short edge and area are honoured."""
    tiny = {"multiple": 32, "short_edge": 64, "max_pixels": 8192}
    assert str(canvas_for_aspect(90, 50, **tiny)) == "128x64"
    assert str(canvas_for_aspect(4, 1, **tiny)) == "192x32"


@settings(deadline=None)
@given(SIZES, SIZES)
def test_canvas_properties(width, height):
    """Any picture within 1:4 gives a canvas of whole multiples near its own aspect and within the cap."""
    assume(max(width, height) <= 4 * min(width, height))
    canvas = canvas_for_aspect(width, height, **RELEASED)
    assert canvas.width % 32 == canvas.height % 32 == 0
    # Rounding moves each side by 16 at the most.
    assert (canvas.width - 16) * (canvas.height - 16) <= RELEASED["max_pixels"]
    assert min(canvas.width, canvas.height) <= 768
    low = Fraction(canvas.width - 16, canvas.height + 16)
    high = Fraction(canvas.width + 16, canvas.height - 16)
    assert low <= Fraction(width, height) <= high
    turned = canvas_for_aspect(height, width, **RELEASED)
    assert (turned.width, turned.height) == (canvas.height, canvas.width)


@pytest.mark.parametrize(("width", "height"), [(401, 100), (100, 401), (0, 10), (10, 0)])
def test_extreme_pictures_are_refused(width, height):
    """Beyond 4:1 and 1:4 there is no canvas, nor for an empty picture."""
    with pytest.raises(ContractError, match="got"):
        canvas_for_aspect(width, height, **RELEASED)
    with pytest.raises(ContractError, match="reference picture"):
        reference_picture_size(width, height, multiple=32, short_edge=2048)


def test_four_to_one_is_still_legal():
    """The limits belong to the legal range, for explicit canvases too."""
    assert check_canvas(Canvas(width=1024, height=256), multiple=32).pixels == 1024 * 256
    assert check_canvas(Canvas(width=256, height=1024), multiple=32) == Canvas(width=256, height=1024)
    with pytest.raises(ContractError, match="1:4 and 4:1, got 1056x256"):
        check_canvas(Canvas(width=1056, height=256), multiple=32)
    with pytest.raises(ContractError, match="1:4 and 4:1, got 256x1056"):
        check_canvas(Canvas(width=256, height=1056), multiple=32)


@pytest.mark.parametrize(("side", "nearest"), [(1, 32), (100, 96), (112, 128), (80, 64), (765, 768), (-32, 32)])
def test_a_canvas_off_the_grid_is_refused_with_the_nearest(side, nearest):
    """The message names the side, its value and the nearest legal one."""
    with pytest.raises(ContractError, match=f"^width must .* 32, got {side}; the nearest is {nearest}$"):
        check_canvas(Canvas(width=side, height=64), multiple=32)
    with pytest.raises(ContractError, match=f"^height must .* 32, got {side}; the nearest is {nearest}$"):
        check_canvas(Canvas(width=64, height=side), multiple=32)


def test_the_long_edge_is_bounded():
    """2048 is legal, one multiple more is not."""
    assert check_canvas(Canvas(width=2048, height=2048), multiple=32)
    for canvas in (Canvas(width=2080, height=2048), Canvas(width=2048, height=2080)):
        with pytest.raises(ContractError, match=f"at most 2048 pixels, got {canvas}"):
            check_canvas(canvas, multiple=32)


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (3072, 2048, "3072x2048"),
        (300, 200, "3072x2048"),
        (64, 64, "2048x2048"),
        (50, 90, "2048x3680"),
        (40, 10, "8192x2048"),
    ],
)
def test_reference_pictures_keep_their_aspect(width, height, expected):
    """Short edge 2048 whatever the source, small ones are enlarged, and there is no area cap."""
    assert str(reference_picture_size(width, height, multiple=32, short_edge=2048)) == expected


@pytest.mark.parametrize(("value", "rounded"), [(48.0, 64), (80.0, 64), (112.0, 128), (47.9, 32), (3.0, 32), (0.0, 32)])
def test_rounding_sends_halves_to_even_and_never_to_zero(value, rounded):
    """1.5 and 2.5 multiples both become 2; nothing vanishes."""
    assert round_to(value, 32) == rounded
