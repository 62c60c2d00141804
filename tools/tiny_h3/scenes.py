"""What happens in a clip of the world, drawn from a seed: categories, and the numbers that make each clip its own."""

from __future__ import annotations

import torch
from attrs import fields, frozen

from vflash_adapters.judge.description import (
    Background,
    Colour,
    Corner,
    Description,
    Motion,
    Pitch,
    Rhythm,
    SecondObject,
    Shape,
    Size,
)
from vflash_adapters.judge.palette import compatible

SHAPES, COLOURS, BACKGROUNDS = tuple(Shape), tuple(Colour), tuple(Background)
MOTIONS, CORNERS, PITCHES = tuple(Motion), tuple(Corner), tuple(Pitch)
SIZES, RHYTHMS = tuple(Size), tuple(Rhythm)

# Radius of a disc of the object's area, in short edges of the canvas.
RADIUS = {Size.SMALL: 0.10, Size.LARGE: 0.165}
GROWN = (0.075, 0.20)
SECOND_RADIUS = 0.075
SECOND_CHANCE = 0.3

# Every (object, background, second object) that can be told apart.
_TRIPLES = [
    (COLOURS.index(a), BACKGROUNDS.index(ground), COLOURS.index(b))
    for a in Colour
    for ground in Background
    for b in Colour
    if a is not b and compatible(a, ground) and compatible(b, ground)
]


@frozen(kw_only=True, eq=False)
class Scenes:
    """n clips. Categories are indices into the tuples above, int64 [n]; numbers are float32 [n] or [n, 2].

    `x`, `y`: fractions of the room the object has, start and end (0 left or top). `radius`: start and end, in short
    edges. `turns`, `angle`: of a circle, signed, in turns. `hit_first`, `hit_every`: audio latents. `apex`: `y` at the
    top of a bounce.
    """

    shape: torch.Tensor
    colour: torch.Tensor
    background: torch.Tensor
    size: torch.Tensor
    motion: torch.Tensor
    pitch: torch.Tensor
    rhythm: torch.Tensor
    has_second: torch.Tensor
    second_shape: torch.Tensor
    second_colour: torch.Tensor
    corner: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    radius: torch.Tensor
    turns: torch.Tensor
    angle: torch.Tensor
    hit_first: torch.Tensor
    hit_every: torch.Tensor
    apex: torch.Tensor

    @property
    def count(self) -> int:
        return int(self.shape.shape[0])

    def to(self, device: torch.device | str) -> Scenes:
        return Scenes(**{f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(Scenes)})

    def __getitem__(self, index: slice | torch.Tensor) -> Scenes:
        return Scenes(**{f.name: getattr(self, f.name)[index] for f in fields(Scenes)})

    def is_motion(self, *motions: Motion) -> torch.Tensor:
        """Bool [n]."""
        wanted = torch.tensor([MOTIONS.index(m) for m in motions], device=self.motion.device)
        return torch.isin(self.motion, wanted)


def draw_scenes(count: int, seed: int, *, second_chance: float = SECOND_CHANCE) -> Scenes:
    """The same scenes for the same seed, on the CPU; every category about equally often."""
    source = _Source(count, torch.Generator().manual_seed(seed))
    triples = torch.tensor(_TRIPLES)[source.pick(len(_TRIPLES))]
    motion = source.pick(len(MOTIONS))
    size = source.pick(len(SIZES))
    resizing = torch.isin(motion, _indices(Motion.GROW, Motion.SHRINK))
    bounce = motion == MOTIONS.index(Motion.BOUNCE)
    rhythm = torch.where(bounce, RHYTHMS.index(Rhythm.CLICKS), source.pick(len(RHYTHMS) - 1))
    x, y = _paths(motion, source)
    return Scenes(
        shape=source.pick(len(SHAPES)),
        colour=triples[:, 0],
        background=triples[:, 1],
        size=torch.where(resizing, -1, size),
        motion=motion,
        pitch=source.pick(len(PITCHES)),
        rhythm=rhythm,
        has_second=source.uniform(0.0, 1.0) < second_chance,
        second_shape=source.pick(len(SHAPES)),
        second_colour=triples[:, 2],
        corner=source.pick(len(CORNERS)),
        x=x,
        y=y,
        radius=_radii(motion, size),
        turns=source.uniform(1.0, 2.0) * source.sign(),
        angle=source.uniform(0.0, 1.0),
        hit_first=torch.randint(14, 34, (count,), generator=source.generator),
        hit_every=torch.randint(34, 54, (count,), generator=source.generator),
        apex=source.uniform(0.0, 0.3),
    )


class SceneStream:
    """Batches of scenes on a device, without end; drawn many at a time, since each draw costs the host."""

    def __init__(self, batch: int, seed: int, device: torch.device, *, ahead: int = 128) -> None:
        self.batch, self.seed, self.device, self.ahead = batch, seed, device, ahead
        self.drawn: Scenes | None = None
        self.used = ahead

    def __next__(self) -> Scenes:
        if self.drawn is None or self.used == self.ahead:
            self.drawn = draw_scenes(self.batch * self.ahead, self.seed).to(self.device)
            self.seed, self.used = self.seed + 1, 0
        start = self.used * self.batch
        self.used += 1
        return self.drawn[start : start + self.batch]


def describe(scenes: Scenes) -> list[Description]:
    """The full description of every scene."""
    columns = {f.name: getattr(scenes, f.name).tolist() for f in fields(Scenes) if getattr(scenes, f.name).ndim == 1}
    return [_description({name: values[i] for name, values in columns.items()}) for i in range(scenes.count)]


def _description(row: dict[str, int]) -> Description:
    second = SecondObject(
        shape=SHAPES[row["second_shape"]], colour=COLOURS[row["second_colour"]], corner=CORNERS[row["corner"]]
    )
    return Description(
        shape=SHAPES[row["shape"]],
        colour=COLOURS[row["colour"]],
        size=SIZES[row["size"]] if row["size"] >= 0 else None,
        motion=MOTIONS[row["motion"]],
        background=BACKGROUNDS[row["background"]],
        second=second if row["has_second"] else None,
        pitch=PITCHES[row["pitch"]],
        rhythm=RHYTHMS[row["rhythm"]],
    )


class _Source:
    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.count, self.generator = count, generator

    def pick(self, options: int) -> torch.Tensor:
        return torch.randint(options, (self.count,), generator=self.generator)

    def uniform(self, low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(self.count, generator=self.generator)

    def sign(self) -> torch.Tensor:
        return 2.0 * self.pick(2).float() - 1.0


def _indices(*motions: Motion) -> torch.Tensor:
    return torch.tensor([MOTIONS.index(m) for m in motions])


def _paths(motion: torch.Tensor, source: _Source) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and end fractions, [n, 2] each. A circle's are its centre; a bounce drifts sideways."""
    near, far, free = source.uniform(0.0, 0.15), source.uniform(0.85, 1.0), source.uniform(0.1, 0.9)
    centre_x, centre_y = source.uniform(0.42, 0.58), source.uniform(0.42, 0.58)
    drift = (free + source.uniform(-0.3, 0.3)).clamp(0.0, 1.0)
    x, y = torch.stack([free, free], 1), torch.stack([free, free], 1)
    for name, values in {
        Motion.LEFT: (far, near),
        Motion.RIGHT: (near, far),
        Motion.BOUNCE: (free, drift),
        **dict.fromkeys((Motion.CIRCLE, Motion.GROW, Motion.SHRINK), (centre_x, centre_x)),
    }.items():
        x = torch.where((motion == MOTIONS.index(name))[:, None], torch.stack(values, 1), x)
    for name, values in {
        Motion.UP: (far, near),
        Motion.DOWN: (near, far),
        **dict.fromkeys((Motion.CIRCLE, Motion.GROW, Motion.SHRINK), (centre_y, centre_y)),
    }.items():
        y = torch.where((motion == MOTIONS.index(name))[:, None], torch.stack(values, 1), y)
    return x, y


def _radii(motion: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    by_size = torch.tensor([RADIUS[s] for s in SIZES])[size]
    radius = torch.stack([by_size, by_size], 1)
    grow = torch.tensor(GROWN)
    radius = torch.where((motion == MOTIONS.index(Motion.GROW))[:, None], grow, radius)
    return torch.where((motion == MOTIONS.index(Motion.SHRINK))[:, None], grow.flip(0), radius)
