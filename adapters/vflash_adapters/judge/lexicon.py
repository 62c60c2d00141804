"""The words of the grammar: phrase -> meaning, in English and Chinese. The longest phrase wins."""

from __future__ import annotations

from enum import StrEnum

from vflash_adapters.judge.description import Background, Colour, Corner, Motion, Pitch, Rhythm, Shape, Size


class Mark(StrEnum):
    """Words that say how to read their neighbours."""

    ON = "on"  # the next colour is the background's
    BACKGROUND = "background"  # the colour before is the background's
    PICTURE = "picture"  # the subject comes from <Picture 1>
    FILLER = "filler"


Meaning = Shape | Size | Motion | Corner | Pitch | Rhythm | Mark | str
"""A plain string is a colour word: whether it is the object's or the background's depends on its neighbours."""

COLOUR_WORDS = {*(str(colour) for colour in Colour), *(str(background) for background in Background)}

# Under each meaning the first phrase is the one always safe to write; the rest are other ways to say it.
ENGLISH: dict[Meaning, tuple[str, ...]] = {
    Shape.BALL: ("ball",),
    Shape.SQUARE: ("square", "box"),
    Shape.TRIANGLE: ("triangle",),
    Shape.STAR: ("star",),
    Shape.RING: ("ring",),
    Size.SMALL: ("small", "little", "tiny"),
    Size.LARGE: ("large", "big"),
    Motion.LEFT: ("moves left", "slides left", "moves to the left", "drifts to the left"),
    Motion.RIGHT: ("moves right", "slides right", "moves to the right", "drifts to the right"),
    Motion.UP: ("moves up", "rises", "floats up"),
    Motion.DOWN: ("moves down", "falls", "sinks"),
    Motion.CIRCLE: ("moves in a circle", "circles", "goes round and round"),
    Motion.BOUNCE: ("bounces", "bounces up and down", "is bouncing"),
    Motion.GROW: ("grows", "gets bigger"),
    Motion.SHRINK: ("shrinks", "gets smaller"),
    Corner.TOP_LEFT: ("in the top left corner", "top left"),
    Corner.TOP_RIGHT: ("in the top right corner", "top right"),
    Corner.BOTTOM_LEFT: ("in the bottom left corner", "bottom left"),
    Corner.BOTTOM_RIGHT: ("in the bottom right corner", "bottom right"),
    Pitch.LOW: ("low", "deep"),
    Pitch.MIDDLE: ("middle", "medium"),
    Pitch.HIGH: ("high", "bright"),
    Rhythm.STEADY: ("steady tone", "steady", "long"),
    Rhythm.SLOW: ("slow beeps", "slow"),
    Rhythm.FAST: ("fast beeps", "fast", "quick"),
    Rhythm.CLICKS: ("clicks", "clicking"),
    Mark.ON: ("on", "against", "over", "in front of"),
    Mark.BACKGROUND: ("background",),
    Mark.PICTURE: ("<picture 1>", "in <picture 1>"),
    Mark.FILLER: ("a", "an", "the", "with", "and", "object", "tone", "beeps", "sound", "at rest", "there is", "it"),
    "red": ("red",),
    "orange": ("orange",),
    "yellow": ("yellow",),
    "green": ("green",),
    "cyan": ("cyan",),
    "blue": ("blue",),
    "purple": ("purple", "violet"),
    "white": ("white",),
    "black": ("black",),
    "grey": ("grey", "gray"),
}

CHINESE: dict[Meaning, tuple[str, ...]] = {
    Shape.BALL: ("圆球", "球"),
    Shape.SQUARE: ("方块", "正方形"),
    Shape.TRIANGLE: ("三角形",),
    Shape.STAR: ("星星", "五角星"),
    Shape.RING: ("圆环",),
    Size.SMALL: ("小", "小小的"),
    Size.LARGE: ("大", "大大的"),
    Motion.LEFT: ("向左移动", "往左滑"),
    Motion.RIGHT: ("向右移动", "往右滑"),
    Motion.UP: ("向上移动", "上升", "往上飘"),
    Motion.DOWN: ("向下移动", "落下", "下沉"),
    Motion.CIRCLE: ("转圈", "绕着圈走"),
    Motion.BOUNCE: ("弹跳", "上下弹跳", "蹦蹦跳跳"),
    Motion.GROW: ("变大", "越来越大"),
    Motion.SHRINK: ("变小", "越来越小"),
    Corner.TOP_LEFT: ("左上角",),
    Corner.TOP_RIGHT: ("右上角",),
    Corner.BOTTOM_LEFT: ("左下角",),
    Corner.BOTTOM_RIGHT: ("右下角",),
    Pitch.LOW: ("低音", "低沉"),
    Pitch.MIDDLE: ("中音",),
    Pitch.HIGH: ("高音", "清亮"),
    Rhythm.STEADY: ("持续", "一直响"),
    Rhythm.SLOW: ("缓慢", "慢慢响"),
    Rhythm.FAST: ("快速", "急促"),
    Rhythm.CLICKS: ("敲击声",),
    Mark.ON: ("在",),
    Mark.BACKGROUND: ("背景上", "背景"),
    Mark.PICTURE: ("<picture 1>里", "<picture 1>"),
    Mark.FILLER: ("一个", "一颗", "的", "有", "伴随", "伴着", "声音", "滴答声", "色", "里", "物体", "是", "并", "和"),
    "red": ("红色", "红"),
    "orange": ("橙色", "橙"),
    "yellow": ("黄色", "黄"),
    "green": ("绿色", "绿"),
    "cyan": ("青色", "青"),
    "blue": ("蓝色", "蓝"),
    "purple": ("紫色", "紫"),
    "white": ("白色", "白"),
    "black": ("黑色", "黑"),
    "grey": ("灰色", "灰"),
}


def phrases(language: dict[Meaning, tuple[str, ...]]) -> dict[str, Meaning]:
    """Phrase -> meaning; no phrase has two."""
    table = {phrase: meaning for meaning, options in language.items() for phrase in options}
    assert len(table) == sum(len(options) for options in language.values())
    return table
