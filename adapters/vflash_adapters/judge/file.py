"""`vflash judge`: one MP4 against one caption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vflash_adapters.judge.parse import parse_caption
from vflash_adapters.judge.reading import read_clip
from vflash_adapters.judge.verdict import Verdict, judge, measure
from vflash_ports.errors import MediaError


def judge_file(
    clip: Path, expectation: str, *, first_frame: Path | None = None, last_frame: Path | None = None
) -> Verdict:
    """Read the delivered MP4 alone, measure it, and score it against the caption and, if given, the keyframes.

    `ContractError` for a caption outside the grammar, `MediaError` for a file that cannot be read.
    """
    expected = parse_caption(expectation)
    played = read_clip(clip)
    height, width = played.frames.shape[1:3]
    pictures = [None if path is None else _picture(path, height, width) for path in (first_frame, last_frame)]
    return judge(measure(played), expected, first_frame=pictures[0], last_frame=pictures[1])


def judge_report(
    clip: Path, expectation: str, *, first_frame: Path | None = None, last_frame: Path | None = None
) -> dict[str, Any]:
    """`judge_file` in plain JSON types: the score, and each attribute's expected, measured and right."""
    return judge_file(clip, expectation, first_frame=first_frame, last_frame=last_frame).as_dict()


def _picture(path: Path, height: int, width: int) -> NDArray[np.uint8]:
    """Stretched to the clip's size, as a first keyframe is."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS))
    except (OSError, UnidentifiedImageError) as error:
        raise MediaError(f"keyframe {path} cannot be read: {error}") from error
