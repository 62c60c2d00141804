"""Small adapters of the real geometry, for tests of what happens around them; real classes, no weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from vflash_adapters.attention.naive import NaiveAttention
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_ports.attention import AttentionFn, AttentionLayout, AttentionReport
from vflash_ports.errors import DeliveryError
from vflash_ports.latent_codec import LatentCodec
from vflash_ports.linear import ActivationFormat, Fp8Rows
from vflash_ports.media import Clip, Delivery, Latents, LatentStore

HOP = 800


class FlatCodecs:
    """A `LatentCodecProvider` that shows each latent frame as flat colour: a request costs no VAE."""

    def check(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        """Runs anywhere."""

    @contextmanager
    def open(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> Iterator[LatentCodec]:
        yield FlatCodec()


class FlatCodec:
    def encode_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        frames = len(pixels)
        latents = 1 if frames == 1 else -(-frames // 17) * 5 - 3
        means = torch.nn.functional.avg_pool2d(pixels.permute(0, 3, 1, 2).float() / 255, 16)
        picked = means[torch.linspace(0, frames - 1, latents).round().long()]
        return picked.repeat(1, 8, 1, 1).transpose(0, 1)[None].contiguous()

    def encode_waveform(self, waveform: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(waveform, (0, -waveform.shape[1] % HOP))
        return padded.reshape(2, -1, 1, HOP).mean(-1).expand(-1, -1, 32).contiguous()

    def decode_video(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        count = latents.shape[2]
        colours = torch.sigmoid(latents[0, :3]).transpose(0, 1)
        full = colours.repeat_interleave(16, -1).repeat_interleave(16, -2)
        total = (count - 2) // 5 * 17 + 5
        yield from full[torch.linspace(0, count - 1, total).round().long()].split(17)

    def decode_audio(self, latents: torch.Tensor) -> torch.Tensor:
        return torch.tanh(latents.mean(1)).repeat_interleave(HOP, -1)


class CountingAttention:
    """Exact attention that remembers every (evaluation, block) it was called for."""

    name = "counting"

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def held_bytes(self, layout: AttentionLayout) -> int:
        return 0

    def prepare(self, layout: AttentionLayout) -> AttentionFn:
        return _CountingFn(self, NaiveAttention().prepare(layout))


class _CountingFn:
    def __init__(self, record: CountingAttention, inner: AttentionFn) -> None:
        self._record, self._inner = record, inner

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block: int, evaluation: int
    ) -> torch.Tensor:
        self._record.calls.append((evaluation, block))
        return self._inner(q, k, v, block=block, evaluation=evaluation)

    def report(self) -> AttentionReport:
        return AttentionReport(backend="counting", exact=True, dense_calls=len(self._record.calls))


class SpoilingKernels(TorchBlockKernels):
    """The reference kernels, but `value` is planted in one block's output from a given evaluation on.

    A block asks for two modulated norms an evaluation (attention, then the FFN), blocks in order.
    """

    name = "spoiling"

    def __init__(self, *, block: int, evaluation: int, blocks: int, value: float = float("nan")) -> None:
        self._from = 2 * (evaluation * blocks + block) + 1
        self._cycle = 2 * blocks
        self._value = value
        self._calls = 0

    def norm_modulate(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        shift: torch.Tensor,
        scale: torch.Tensor,
        rows: torch.Tensor,
        *,
        eps: float,
        emit: ActivationFormat,
    ) -> torch.Tensor | Fp8Rows:
        out = super().norm_modulate(x, weight, shift, scale, rows, eps=eps, emit=emit)
        if self._calls >= self._from and (self._calls - self._from) % self._cycle == 0:
            assert isinstance(out, torch.Tensor)
            out[-1, 0] = self._value
        self._calls += 1
        return out


class FailingSink:
    """Takes a few chunks of frames and then fails as a full disk would."""

    name = "failing"

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def check(self, output: Path) -> None:
        pass

    def write(self, clip: Clip, output: Path) -> Delivery:
        next(clip.frames)
        raise self._error


class MemoryLatentStore:
    """A `LatentStore` without a disk; a name is taken once."""

    def __init__(self) -> None:
        self.kept: dict[Path, Latents] = {}

    def check(self, path: Path) -> None:
        assert path not in self.kept

    def save(self, latents: Latents, path: Path) -> None:
        self.check(path)
        self.kept[path] = latents

    def load(self, path: Path) -> Latents:
        return self.kept[path]


class FullDisk:
    """A `LatentStore` over another that cannot save in some folders."""

    def __init__(self, inner: LatentStore, *full: Path) -> None:
        self.check, self.load, self._inner, self._full = inner.check, inner.load, inner, full

    def save(self, latents: Latents, path: Path) -> None:
        if any(folder in path.parents for folder in self._full):
            raise DeliveryError(f"latents cannot be saved to {path}: no space left")
        self._inner.save(latents, path)
