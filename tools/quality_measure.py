"""What an approximation costs: on delivered pixels and samples, and on velocities at the states of the exact run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from safetensors.torch import load_file, save

from vflash.model.transformer import PreparedDenoiser

Pixels = NDArray[np.uint8]
Velocities = tuple[torch.Tensor, torch.Tensor]


@frozen(kw_only=True, eq=False)
class Trajectory:
    """One exact run: `states` and `velocities` (video rows, audio rows) of every evaluation, on the CPU."""

    states: list[Velocities] = field(factory=list)
    velocities: list[Velocities] = field(factory=list)

    def save(self, path: Path) -> None:
        tensors = {
            f"{kind}.{number:03d}.{part}": rows.contiguous()
            for kind, pairs in (("states", self.states), ("velocities", self.velocities))
            for number, pair in enumerate(pairs)
            for part, rows in zip(("video", "audio"), pair, strict=True)
        }
        path.write_bytes(save(tensors))

    @classmethod
    def load(cls, path: Path) -> Trajectory:
        tensors = load_file(path)
        numbers = range(len(tensors) // 4)
        states, velocities = (
            [(tensors[f"{kind}.{n:03d}.video"], tensors[f"{kind}.{n:03d}.audio"]) for n in numbers]
            for kind in ("states", "velocities")
        )
        return cls(states=states, velocities=velocities)


@contextmanager
def recorded() -> Iterator[Trajectory]:
    """Requests inside run as they are; the last one's trajectory is kept."""
    found = Trajectory()

    def watch(original: Callable[..., Velocities], prepared: Any, at: int, video: Any, audio: Any) -> Velocities:
        if at == 0:
            found.states.clear()
            found.velocities.clear()
        found.states.append((video.cpu(), audio.cpu()))
        result = original(prepared, at, video, audio)
        found.velocities.append((result[0].cpu(), result[1].cpu()))
        return result

    with _evaluations_through(watch):
        yield found


@contextmanager
def teacher_forced(exact: Trajectory) -> Iterator[list[dict[str, float]]]:
    """Requests inside walk the exact run's states, whatever their own velocities: those are only compared.

    Yields, filled evaluation by evaluation, |found - exact| / |exact| of the video and of the audio rows apart.
    """
    errors: list[dict[str, float]] = []

    def compare(original: Callable[..., Velocities], prepared: Any, at: int, video: Any, audio: Any) -> Velocities:
        state = tuple(rows.to(video.device) for rows in exact.states[at])
        found = original(prepared, at, *state)
        wanted = tuple(rows.to(video.device) for rows in exact.velocities[at])
        errors.append({name: _relative(f, w) for name, f, w in zip(("video", "audio"), found, wanted, strict=True)})
        return wanted[0], wanted[1]

    with _evaluations_through(compare):
        yield errors


def psnr_db(found: Pixels, wanted: Pixels) -> float:
    """Over all frames and channels, [F, H, W, 3]; 100 for equal clips."""
    square = float(np.mean((found.astype(np.float64) - wanted) ** 2))
    return 100.0 if square == 0 else min(100.0, 10.0 * float(np.log10(255.0**2 / square)))


def ssim(found: Pixels, wanted: Pixels) -> float:
    """Mean structural similarity of the luma over 8 x 8 blocks (Wang et al. 2004, equal weights within a block)."""
    a, b = (_blocks(_luma(clip)) for clip in (found, wanted))
    mean_a, mean_b = a.mean(-1), b.mean(-1)
    var_a, var_b = a.var(-1), b.var(-1)
    together = ((a - mean_a[..., None]) * (b - mean_b[..., None])).mean(-1)
    small, smaller = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    above = (2 * mean_a * mean_b + small) * (2 * together + smaller)
    return float((above / ((mean_a**2 + mean_b**2 + small) * (var_a + var_b + smaller))).mean())


def sound_snr_db(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Signal to difference, both channels; 100 for equal sound, 0 where the difference is as loud as the sound."""
    count = min(found.shape[1], wanted.shape[1])
    difference = float(np.square(found[:, :count] - wanted[:, :count], dtype=np.float64).sum())
    signal = float(np.square(wanted[:, :count], dtype=np.float64).sum())
    if difference == 0:
        return 100.0
    return min(100.0, 10.0 * float(np.log10(max(signal, 1e-12) / difference)))


@contextmanager
def _evaluations_through(watch: Callable[..., Velocities]) -> Iterator[None]:
    """Every evaluation of every denoiser goes through `watch`; the class is as before afterwards."""
    original = PreparedDenoiser.evaluate

    def evaluate(self: PreparedDenoiser, at: int, video: torch.Tensor, audio: torch.Tensor) -> Velocities:
        return watch(original, self, at, video, audio)

    setattr(PreparedDenoiser, "evaluate", evaluate)  # noqa: B010, mypy takes no other way
    try:
        yield
    finally:
        setattr(PreparedDenoiser, "evaluate", original)  # noqa: B010


def _relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30))


def _luma(clip: Pixels) -> NDArray[np.float64]:
    weights = np.array([0.2126, 0.7152, 0.0722])
    luma: NDArray[np.float64] = clip.astype(np.float64) @ weights
    return luma


def _blocks(luma: NDArray[np.float64]) -> NDArray[np.float64]:
    """[F, H, W] -> [F, H/8, W/8, 64]; what does not fill a block is left out."""
    count, height, width = luma.shape
    cut = luma[:, : height // 8 * 8, : width // 8 * 8]
    return (
        cut.reshape(count, height // 8, 8, width // 8, 8).transpose(0, 1, 3, 2, 4).reshape(count, height // 8, -1, 64)
    )
