"""Decoded clips to frames in host memory, the next clip computing while one is handed on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from vflash_ports.errors import NonFiniteError

# ImageNet's statistics over [0, 1], the video VAE's pixel convention.
PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)


def delivered_frames(clips: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Clips [1, 3, f, H, W] in the VAE's convention -> float32 CPU [f, 3, H, W] in [0, 1].

    On CUDA a clip is waited for only once the work of the next one is queued. Raises `NonFiniteError`.
    """
    waiting: Callable[[], torch.Tensor] | None = None
    for number, clip in enumerate(clips):
        if clip.device.type != "cuda":
            yield _on_host(*_frames(clip), number)
            continue
        queued = _queue(*_frames(clip), number)
        if waiting is not None:
            yield waiting()
        waiting = queued
    if waiting is not None:
        yield waiting()


def per_channel(values: tuple[float, ...], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, device=like.device).view(1, -1, 1, 1, 1)


def _frames(clip: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames first, and whether all of them are finite before the clamp hides it."""
    pixels = clip.float() * per_channel(PIXEL_STD, clip) + per_channel(PIXEL_MEAN, clip)
    return pixels.clamp(0, 1)[0].transpose(0, 1).contiguous(), torch.isfinite(pixels).all()


def _on_host(frames: torch.Tensor, finite: torch.Tensor, number: int) -> torch.Tensor:
    if not bool(finite):
        raise NonFiniteError(f"decoded video clip {number} holds NaN or infinity")
    return frames


def _queue(frames: torch.Tensor, finite: torch.Tensor, number: int) -> Callable[[], torch.Tensor]:
    """Start the copies on a stream of their own; the returned call waits for them alone."""
    current, copying = torch.cuda.current_stream(frames.device), torch.cuda.Stream(frames.device)
    copying.wait_stream(current)
    with torch.cuda.stream(copying):
        copies = [torch.empty_like(part, device="cpu", pin_memory=True) for part in (frames, finite)]
        for copy, part in zip(copies, (frames, finite), strict=True):
            copy.copy_(part, non_blocking=True)
            part.record_stream(copying)
    done = torch.cuda.Event()
    done.record(copying)

    def wait() -> torch.Tensor:
        done.synchronize()
        return _on_host(copies[0], copies[1], number)

    return wait
