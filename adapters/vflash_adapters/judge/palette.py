"""The world's colours in sRGB, 0 to 255. Objects are bright; backgrounds of the same name are darker."""

from __future__ import annotations

from vflash_adapters.judge.description import Background, Colour

OBJECT_RGB: dict[Colour, tuple[int, int, int]] = {
    Colour.RED: (230, 40, 45),
    Colour.ORANGE: (255, 140, 25),
    Colour.YELLOW: (250, 230, 50),
    Colour.GREEN: (50, 200, 75),
    Colour.CYAN: (50, 215, 225),
    Colour.BLUE: (55, 95, 240),
    Colour.PURPLE: (170, 65, 215),
    Colour.WHITE: (245, 245, 245),
}

BACKGROUND_RGB: dict[Background, tuple[int, int, int]] = {
    Background.BLACK: (14, 14, 18),
    Background.GREY: (118, 118, 122),
    Background.WHITE: (228, 228, 224),
    Background.RED: (110, 22, 32),
    Background.GREEN: (20, 85, 48),
    Background.BLUE: (24, 42, 112),
    Background.PURPLE: (74, 28, 98),
}


def compatible(colour: Colour, background: Background) -> bool:
    """An object never has its background's name."""
    return str(colour) != str(background)
