"""A caption against what was measured, attribute by attribute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from vflash_adapters.judge.blobs import Floats
from vflash_adapters.judge.description import Description, Motion, SecondObject, Size
from vflash_adapters.judge.heard import HOP_S, Heard, hear
from vflash_adapters.judge.motion import MotionFacts, classify, motion_facts
from vflash_adapters.judge.reading import PlayedClip
from vflash_adapters.judge.seen import Seen, Track, see

SIZE_BOUNDARY = 0.128
"""Radius in short edges between small (0.10) and large (0.165)."""
PAN_TOLERANCE = 0.12
SYNC_TOLERANCE_S = 0.08
CORRELATION = 0.8
KEYFRAME_MATCH = 0.5


@frozen(kw_only=True, eq=False)
class Measured:
    """Everything the judge measures on one clip. It does not know what was asked for."""

    seen: Seen
    heard: Heard
    facts: MotionFacts | None
    motion: Motion | None
    size: Size | None
    fps: float
    first: NDArray[np.uint8]
    last: NDArray[np.uint8]


@frozen(kw_only=True)
class AttributeVerdict:
    """`right` is the score; `expected` and `measured` are what a person would read."""

    name: str
    expected: str
    measured: str
    right: bool


@frozen(kw_only=True)
class Verdict:
    attributes: tuple[AttributeVerdict, ...]

    @property
    def score(self) -> float:
        """Share of attributes that are right."""
        return sum(a.right for a in self.attributes) / len(self.attributes)

    def as_dict(self) -> dict[str, Any]:
        rows = {a.name: {"expected": a.expected, "measured": a.measured, "right": a.right} for a in self.attributes}
        return {"score": self.score, "attributes": rows}


def measure(clip: PlayedClip) -> Measured:
    seen = see(clip.frames)
    facts = None if seen.track is None else motion_facts(seen.track, clip.fps)
    motion = None if facts is None else classify(facts)
    return Measured(
        seen=seen,
        heard=hear(clip.waveform, clip.sample_rate_hz),
        facts=facts,
        motion=motion,
        size=_size(seen.track),
        fps=clip.fps,
        first=clip.frames[0],
        last=clip.frames[-1],
    )


def judge(
    measured: Measured,
    expected: Description,
    *,
    first_frame: NDArray[np.uint8] | None = None,
    last_frame: NDArray[np.uint8] | None = None,
) -> Verdict:
    """Every attribute the caption states, then pan and sync, which every clip of the world has; then the keyframes,
    uint8 RGB of the clip's own size, if given."""
    rows = list(_stated(measured, expected))
    motion = expected.motion if expected.motion is not None else measured.motion
    rows.append(_pan(measured))
    if motion is not None:
        rows.append(_sync(measured, motion))
    for name, wanted, found in (
        ("first frame", first_frame, measured.first),
        ("last frame", last_frame, measured.last),
    ):
        if wanted is not None:
            rows.append(_keyframe(name, wanted, found))
    return Verdict(attributes=tuple(rows))


def _size(track: Track | None) -> Size | None:
    if track is None:
        return None
    return Size.SMALL if float(np.median(track.radius)) < SIZE_BOUNDARY else Size.LARGE


def _stated(measured: Measured, expected: Description) -> Iterator[AttributeVerdict]:
    seen, heard = measured.seen, measured.heard
    found: dict[str, object] = {
        "colour": seen.colour,
        "shape": seen.shape,
        "size": measured.size,
        "motion": measured.motion,
        "background": seen.background,
        "pitch": heard.pitch,
        "rhythm": heard.rhythm,
    }
    for name, value in found.items():
        wanted = getattr(expected, name)
        if wanted is not None:
            yield AttributeVerdict(name=name, expected=str(wanted), measured=str(value), right=value == wanted)
    if expected.second is not None:
        yield AttributeVerdict(
            name="second object",
            expected=_named(expected.second),
            measured=_named(seen.second),
            right=seen.second == expected.second,
        )


def _named(second: SecondObject | None) -> str:
    return "none" if second is None else f"{second.colour} {second.shape} {second.corner}"


def _pan(measured: Measured) -> AttributeVerdict:
    heard, track = measured.heard, measured.seen.track
    expected = f"follows the object within {PAN_TOLERANCE}"
    if track is None or not heard.active.any():
        return AttributeVerdict(name="pan", expected=expected, measured="nothing to compare", right=False)
    error = float(np.abs(heard.pan - _at_hops(track.x, measured))[heard.active].mean())
    return AttributeVerdict(name="pan", expected=expected, measured=f"off by {error:.3f}", right=error < PAN_TOLERANCE)


def _at_hops(values: Floats, measured: Measured) -> Floats:
    """A per-frame track at the middle of each sound hop."""
    seconds = (np.arange(len(measured.heard.level)) + 0.5) * HOP_S
    return np.interp(seconds * measured.fps, np.arange(len(values)), values).astype(np.float32)


def _sync(measured: Measured, motion: Motion) -> AttributeVerdict:
    rule = _SYNC[motion]
    track = measured.seen.track
    if track is None or measured.facts is None or not measured.heard.active.any():
        return AttributeVerdict(name="sync", expected=rule.expected, measured="nothing to compare", right=False)
    value = rule.score(measured, track)
    return AttributeVerdict(name="sync", expected=rule.expected, measured=f"{value:.2f}", right=value > rule.threshold)


@frozen(kw_only=True)
class _SyncRule:
    expected: str
    threshold: float
    score: Callable[[Measured, Track], float]


def _pan_follows(measured: Measured, track: Track) -> float:
    return _correlation(measured.heard.pan, _at_hops(track.x, measured), measured.heard.active)


def _pitch_follows(measured: Measured, track: Track) -> float:
    pitch = np.log2(np.maximum(measured.heard.pitch_hz, 1.0))
    return _correlation(pitch, -_at_hops(track.y, measured), measured.heard.active)


def _level_follows(measured: Measured, track: Track) -> float:
    return _correlation(measured.heard.level, _at_hops(track.radius, measured), measured.heard.active)


def _clicks_hit(measured: Measured, track: Track) -> float:
    """F1 of contacts with clicks within the tolerance. Contacts at the very ends cannot be seen, so clicks there are
    not asked for."""
    assert measured.facts is not None
    contacts, clicks = measured.facts.contacts_s, measured.heard.onsets_s
    if len(contacts) == 0 or len(clicks) == 0:
        return 0.0
    seen_clicks = clicks[(clicks > contacts.min() - 0.3) & (clicks < contacts.max() + 0.3)]
    gaps = np.abs(contacts[:, None] - seen_clicks[None, :])
    if gaps.size == 0:
        return 0.0
    hits = float((gaps.min(1) < SYNC_TOLERANCE_S).sum() + (gaps.min(0) < SYNC_TOLERANCE_S).sum())
    return hits / (len(contacts) + len(seen_clicks))


_SYNC = {
    **dict.fromkeys(
        (Motion.LEFT, Motion.RIGHT, Motion.CIRCLE),
        _SyncRule(expected="pan moves with the object", threshold=CORRELATION, score=_pan_follows),
    ),
    **dict.fromkeys(
        (Motion.UP, Motion.DOWN),
        _SyncRule(expected="pitch moves with the object", threshold=CORRELATION, score=_pitch_follows),
    ),
    **dict.fromkeys(
        (Motion.GROW, Motion.SHRINK),
        _SyncRule(expected="loudness moves with the size", threshold=CORRELATION, score=_level_follows),
    ),
    Motion.BOUNCE: _SyncRule(
        expected=f"clicks within {SYNC_TOLERANCE_S} s of the floor", threshold=0.7, score=_clicks_hit
    ),
}


def _correlation(left: Floats, right: Floats, where: NDArray[np.bool_]) -> float:
    if where.sum() < 8:
        return 0.0
    a, b = left[where] - left[where].mean(), right[where] - right[where].mean()
    return float((a * b).sum() / max(float(np.sqrt((a * a).sum() * (b * b).sum())), 1e-9))


def _keyframe(name: str, wanted: NDArray[np.uint8], found: NDArray[np.uint8]) -> AttributeVerdict:
    """1 - |difference|^2 / |picture - its background|^2: 1 for equal pictures, about -1 for an object elsewhere."""
    wanted_f, found_f = wanted.astype(np.float32), found.astype(np.float32)
    ground = np.median(wanted_f.reshape(-1, 3), axis=0)
    content = max(float(((wanted_f - ground) ** 2).sum()), 1.0)
    match = 1.0 - float(((wanted_f - found_f) ** 2).sum()) / content
    return AttributeVerdict(
        name=name, expected=f"match above {KEYFRAME_MATCH}", measured=f"{match:.2f}", right=match > KEYFRAME_MATCH
    )
