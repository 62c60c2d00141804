"""The small world, rendered: video, stereo sound and exact ground truth for scenes, in vectorised torch.

Sound lives on the audio latent grid: 40 frames of 800 samples a second. A tone is always a multiple of 40 Hz, at phase
zero where a frame starts, so that a steady tone is one frame repeated; a click starts where a frame starts.
"""

from __future__ import annotations

import math

import torch
from attrs import frozen

from tiny_h3.scenes import (
    BACKGROUNDS,
    COLOURS,
    GROWN,
    PITCHES,
    RHYTHMS,
    SECOND_RADIUS,
    SHAPES,
    Scenes,
)
from vflash_adapters.judge.description import Motion, Pitch, Rhythm
from vflash_adapters.judge.palette import BACKGROUND_RGB, OBJECT_RGB
from vflash_adapters.judge.shapes import extent, outlines, signed_distance

FPS = 24
FRAMES = 124
"""Modelled for five seconds; 120 are delivered."""
SAMPLE_RATE_HZ = 32_000
HOP = 800
AUDIO_LATENTS = 207

HARMONIC = {Pitch.LOW: 6, Pitch.MIDDLE: 12, Pitch.HIGH: 24}
"""Multiples of 40 Hz: 240, 480 and 960 Hz. Rising and falling objects glide over the octave above."""
BEAT_LATENTS = {Rhythm.SLOW: 24, Rhythm.FAST: 8}
"""A beat's period; it sounds for the first half."""
CLICK_LATENTS = 8
CLICK_DECAY_S = 0.045
RAMP_S = 0.004
AMPLITUDE = 0.5
OVERTONES = (1.0, 0.35, 0.15)
SHADE = 0.10
"""How much lighter the top of an object is than its centre, and the bottom darker."""
_MARGIN = 0.03


@frozen(kw_only=True, eq=False)
class Truth:
    """Where everything is. `x`, `y` [n, F] centres in canvas widths and heights, `radius` [n, F] in short edges;
    `hits_s` [n, F] False where nothing is hit; at video frame times. `pitch_hz` [n, A] 0 where silent, at audio
    latent times; `click` [n, A] bool, where a click starts."""

    x: torch.Tensor
    y: torch.Tensor
    radius: torch.Tensor
    pitch_hz: torch.Tensor
    click: torch.Tensor


def truth(scenes: Scenes, height: int, width: int, *, frames: int = FRAMES) -> Truth:
    """Exact ground truth of every scene on one canvas."""
    device = scenes.shape.device
    seconds = torch.arange(frames, device=device) / FPS
    x, y, radius = locate(scenes, seconds, height, width)
    latents = audio_latents(frames)
    click = clicks(scenes, latents)
    harmonic = harmonics(scenes, latents)
    sounding = beats(scenes, latents) | since_click(click).lt(CLICK_LATENTS)
    return Truth(x=x, y=y, radius=radius, pitch_hz=torch.where(sounding, harmonic * 40.0, 0.0), click=click)


def audio_latents(frames: int) -> int:
    return round(frames / FPS * 40)


def locate(
    scenes: Scenes, seconds: torch.Tensor, height: int, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Centres in widths and heights and radius in short edges, [n, len(seconds)] each."""
    whole_s = (FRAMES - 1) / FPS
    progress = (seconds / whole_s)[None]
    x = scenes.x[:, :1] + (scenes.x[:, 1:] - scenes.x[:, :1]) * progress
    y = scenes.y[:, :1] + (scenes.y[:, 1:] - scenes.y[:, :1]) * progress
    radius = scenes.radius[:, :1] + (scenes.radius[:, 1:] - scenes.radius[:, :1]) * progress
    turn = 2.0 * math.pi * (scenes.angle[:, None] + scenes.turns[:, None] * progress)
    circle = scenes.is_motion(Motion.CIRCLE)[:, None]
    x = torch.where(circle, x + 0.40 * torch.cos(turn), x)
    y = torch.where(circle, y + 0.40 * torch.sin(turn), y)
    phase = (seconds[None] * 40.0 - scenes.hit_first[:, None]) / scenes.hit_every[:, None]
    phase = phase - torch.floor(phase)
    lift = 4.0 * phase * (1.0 - phase) * (1.0 - scenes.apex[:, None])
    y = torch.where(scenes.is_motion(Motion.BOUNCE)[:, None], 1.0 - lift, y)
    short = min(height, width)
    reach = torch.tensor([extent(s) for s in SHAPES], device=x.device)[scenes.shape]
    across, down = radius * reach[:, :1] * short / width, radius * reach[:, 1:] * short / height
    return _into_room(x, across), _into_room(y, down), radius


def render_video(
    scenes: Scenes, height: int, width: int, *, first_frame: torch.Tensor | int = 0, frames: int = FRAMES
) -> torch.Tensor:
    """float32 [n, 3, frames, height, width] in [0, 1]; `first_frame` (one, or [n]) starts the window later."""
    device = scenes.shape.device
    start = torch.as_tensor(first_frame, device=device).reshape(-1)
    offsets = torch.arange(frames, device=device)
    if start.numel() == 1:
        x, y, radius = locate(scenes, (start + offsets) / FPS, height, width)
    else:
        x, y, radius = _locate_windows(scenes, start, offsets, height, width)
    return paint(scenes, x, y, radius, height=height, width=width)


def paint(
    scenes: Scenes, x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor, *, height: int, width: int
) -> torch.Tensor:
    """Draw given positions [n, F]: the second object first, the main one over it."""
    device = scenes.shape.device
    ground = torch.tensor([BACKGROUND_RGB[b] for b in BACKGROUNDS], device=device)[scenes.background] / 255.0
    colours = torch.tensor([OBJECT_RGB[c] for c in COLOURS], device=device) / 255.0
    picture = ground[:, :, None, None, None].expand(-1, -1, x.shape[1], height, width)
    short = min(height, width)
    second_x, second_y = _corner_places(scenes, height, width)
    still = torch.full_like(x, SECOND_RADIUS * short)
    layers = (
        (scenes.second_shape, colours[scenes.second_colour], second_x, second_y, still, scenes.has_second),
        (scenes.shape, colours[scenes.colour], x, y, radius * short, torch.ones_like(scenes.has_second)),
    )
    for shape, colour, layer_x, layer_y, size, present in layers:
        cover, lit = _cover(shape, layer_x * width, layer_y * height, size, height=height, width=width)
        cover = cover * present[:, None, None, None]
        picture = picture + cover[:, None] * ((colour[:, :, None, None, None] * lit[:, None]).clamp(0, 1) - picture)
    return picture


def render_audio(scenes: Scenes, *, frames: int = FRAMES, aspect: tuple[int, int] = (96, 128)) -> torch.Tensor:
    """float32 [n, 2, latents * 800]: left, right. The pan is the object's place on the `aspect` (height, width)."""
    latents = audio_latents(frames)
    device = scenes.shape.device
    within = torch.arange(HOP, device=device) / SAMPLE_RATE_HZ
    tone = _tone(harmonics(scenes, latents), within)
    beat = beats(scenes, latents)
    envelope = _envelope(beat, within)
    click = clicks(scenes, latents)
    since = since_click(click)
    age = since[:, :, None] / 40.0 + within
    ring = torch.exp(-age / CLICK_DECAY_S) * (age / 0.001).clamp(0, 1) * since.lt(CLICK_LATENTS)[:, :, None]
    wave = (tone * (envelope + ring)).flatten(1)
    seconds = torch.arange(wave.shape[1], device=device) / SAMPLE_RATE_HZ
    both = frame_gains(scenes, latents, aspect)
    return torch.stack([wave * _between(gain, seconds) for gain in both], dim=1) * AMPLITUDE


def frame_gains(scenes: Scenes, latents: int, aspect: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Left and right where latent frames meet, [n, latents + 1] each: the pan is the object's place, what grows gets
    louder."""
    knots = torch.arange(latents + 1, device=scenes.shape.device) / 40.0
    x, _, radius = locate(scenes, knots.clamp(max=(FRAMES - 1) / FPS), *aspect)
    resizing = scenes.is_motion(Motion.GROW, Motion.SHRINK)[:, None]
    loud = torch.where(resizing, radius / GROWN[1], 1.0)
    return torch.cos(0.5 * math.pi * x) * loud, torch.sin(0.5 * math.pi * x) * loud


def _into_room(fraction: torch.Tensor, reach: torch.Tensor) -> torch.Tensor:
    low = reach + _MARGIN
    return low + fraction * (1.0 - 2.0 * low)


def _locate_windows(
    scenes: Scenes, start: torch.Tensor, offsets: torch.Tensor, height: int, width: int
) -> tuple[torch.Tensor, ...]:
    """`locate` with a time axis of its own for every scene."""
    grid = torch.arange(FRAMES, device=start.device)
    at = (start[:, None] + offsets).clamp(max=FRAMES - 1)
    return tuple(values.gather(1, at) for values in locate(scenes, grid / FPS, height, width))


def _corner_places(scenes: Scenes, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Centre of the second object, [n, 1] each, in widths and heights. Corners: two on top, then two below."""
    short = min(height, width)
    reach = torch.tensor([extent(s) for s in SHAPES], device=scenes.shape.device)[scenes.second_shape] * SECOND_RADIUS
    right, below = (scenes.corner % 2).float(), (scenes.corner // 2).float()
    x = _into_room(right, reach[:, 0] * short / width)
    y = _into_room(below, reach[:, 1] * short / height)
    return x[:, None], y[:, None]


def _cover(
    shape: torch.Tensor, x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor, *, height: int, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Coverage in [0, 1] and light, [n, F, height, width]; `x`, `y`, `radius` in pixels."""
    rows = torch.arange(height, device=x.device) + 0.5
    columns = torch.arange(width, device=x.device) + 0.5
    scale = radius[:, :, None, None]
    dx = (columns - x[:, :, None, None]) / scale
    dy = (rows[:, None] - y[:, :, None, None]) / scale
    rows_of_shape = torch.tensor(outlines(SHAPES), device=x.device)[shape][:, None, None, None]
    distance = signed_distance(rows_of_shape, dx, dy)
    return (0.5 - distance * scale / 1.2).clamp(0, 1), 1.0 - SHADE * dy


def harmonics(scenes: Scenes, latents: int) -> torch.Tensor:
    """Which multiple of 40 Hz each latent frame sounds, float [n, latents], whether or not it is silent."""
    low = torch.tensor([HARMONIC[p] for p in PITCHES], device=scenes.pitch.device)[scenes.pitch].float()[:, None]
    progress = (torch.arange(latents, device=low.device) / (latents - 1))[None]
    rising = scenes.is_motion(Motion.UP)[:, None]
    falling = scenes.is_motion(Motion.DOWN)[:, None]
    octave = torch.where(rising, progress, torch.where(falling, 1.0 - progress, 0.0))
    return torch.round(low * 2.0**octave)


def _tone(harmonic: torch.Tensor, within: torch.Tensor) -> torch.Tensor:
    angle = 2.0 * math.pi * 40.0 * harmonic[:, :, None] * within
    return sum(weight * torch.sin((k + 1) * angle) for k, weight in enumerate(OVERTONES)) / sum(OVERTONES)  # type: ignore[return-value]


def beats(scenes: Scenes, latents: int) -> torch.Tensor:
    """Where the tone sounds, bool [n, latents]; a bounce has no tone, only clicks."""
    index = torch.arange(latents, device=scenes.rhythm.device)[None]
    rhythm = scenes.rhythm[:, None]
    on = rhythm == RHYTHMS.index(Rhythm.STEADY)
    for name, period in BEAT_LATENTS.items():
        on = on | ((rhythm == RHYTHMS.index(name)) & (index % period < period // 2))
    return on.expand(-1, latents)


def tone_edges(on: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the last frame of every tone, bool [n, latents] each."""
    before = torch.nn.functional.pad(on, (1, 0))[:, :-1]
    after = torch.nn.functional.pad(on, (0, 1))[:, 1:]
    return on & ~before, on & ~after


def _envelope(on: torch.Tensor, within: torch.Tensor) -> torch.Tensor:
    """0 to 1 envelope [n, latents, HOP]: short ramps inside the first and last frame of a beat."""
    attack, release = tone_edges(on)
    remaining = HOP / SAMPLE_RATE_HZ - within
    rise = torch.where(attack[:, :, None], (within / RAMP_S).clamp(max=1.0), 1.0)
    fall = torch.where(release[:, :, None], (remaining / RAMP_S).clamp(max=1.0), 1.0)
    return on[:, :, None] * rise * fall


def clicks(scenes: Scenes, latents: int) -> torch.Tensor:
    """Latent frames in which the object hits the floor, bool [n, latents]."""
    index = torch.arange(latents, device=scenes.motion.device)[None]
    since = index - scenes.hit_first[:, None]
    # The pattern reaches back before the first hit, as the motion does.
    return (torch.remainder(since, scenes.hit_every[:, None]) == 0) & scenes.is_motion(Motion.BOUNCE)[:, None]


def since_click(click: torch.Tensor) -> torch.Tensor:
    """Latent frames since the last click, large before the first: int64 [n, latents]."""
    index = torch.arange(click.shape[1], device=click.device).expand_as(click)
    last = torch.where(click, index, -1_000).cummax(1).values
    return index - last


def _between(knots: torch.Tensor, seconds: torch.Tensor) -> torch.Tensor:
    """Linear interpolation of [n, latents + 1] values, 40 a second, at `seconds` [samples]."""
    position = seconds * 40.0
    low = position.floor().long().clamp(max=knots.shape[1] - 2)
    weight = position - low
    return knots[:, low] * (1.0 - weight) + knots[:, low + 1] * weight
