"""What every latent codec promises, over the released VAEs of both tiny checkpoints and a small fake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from vflash_adapters.latent_codec.diffusers_vaes import DiffusersVaes
from vflash_adapters.latent_codec.video_decoders import VideoDecoder
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import ContractError
from vflash_ports.latent_codec import LatentCodecProvider

CPU = torch.device("cpu")
HOP = 800


class FakeCodecs:
    def check(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        """Runs anywhere."""

    @contextmanager
    def open(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> Iterator[FakeCodec]:
        yield FakeCodec()


class FakeCodec:
    """Averages and repeats: no weights, the real geometry."""

    def encode_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        frames = len(pixels)
        latents = 1 if frames == 1 else -(-frames // 17) * 5 - 3
        small = torch.nn.functional.avg_pool2d(pixels.permute(0, 3, 1, 2).float() / 255, 16)
        picked = small[torch.linspace(0, frames - 1, latents).round().long()]
        return picked.repeat(1, 8, 1, 1).transpose(0, 1)[None]

    def encode_waveform(self, waveform: torch.Tensor) -> torch.Tensor:
        if not waveform.shape[1]:
            raise ContractError("no samples")
        padded = torch.nn.functional.pad(waveform, (0, -waveform.shape[1] % HOP))
        return padded.reshape(2, -1, 1, HOP).mean(-1).expand(-1, -1, 32).contiguous()

    def decode_video(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        count = latents.shape[2]
        if count < 7 or count % 5 != 2:
            raise ContractError(f"{count} latent frames cannot be decoded")
        frames = (latents[0, :3] / 4 + 0.5).clamp(0, 1).transpose(0, 1)
        full = frames.repeat_interleave(16, -1).repeat_interleave(16, -2)
        frame = torch.arange((count - 2) // 5 * 17 + 5)
        yield from full[frame // 17 * 5 + frame % 17 * 5 // 17].split(17)

    def decode_audio(self, latents: torch.Tensor) -> torch.Tensor:
        return torch.tanh(latents.mean(1)).repeat_interleave(HOP, -1)


FUSED, FUSED_FP8 = VideoDecoder.FUSED, VideoDecoder.FUSED_FP8
CODECS = {
    "small": DiffusersVaes(weights=MmapWeights),
    "small, 3 tiles at once": DiffusersVaes(weights=MmapWeights, tiles_at_once=3),
    "small, fused": DiffusersVaes(weights=MmapWeights, video_decoder=FUSED),
    "small, fused, bfloat16": DiffusersVaes(weights=MmapWeights, video_decoder=FUSED, tiles_at_once=3),
    "small, fused-fp8, bfloat16": DiffusersVaes(weights=MmapWeights, video_decoder=FUSED_FP8, tiles_at_once=3),
    "small, fused-fp8, swapped, bfloat16": DiffusersVaes(weights=MmapWeights, video_decoder=FUSED_FP8, swap=True),
    "other": DiffusersVaes(weights=MmapWeights),
    "other, 3 tiles at once": DiffusersVaes(weights=MmapWeights, tiles_at_once=3),
    "other, fused": DiffusersVaes(weights=MmapWeights, video_decoder=FUSED, tiles_at_once=3),
    "small, swapped": DiffusersVaes(weights=MmapWeights, swap=True),
    "fake": FakeCodecs(),
}
"""By checkpoint, float32 unless it says so."""


@pytest.fixture(scope="module", params=CODECS)
def codec(request: pytest.FixtureRequest, tiny_checkpoints: Mapping[str, Path]) -> Iterator[Any]:
    folder = tiny_checkpoints.get(request.param.partition(",")[0], Path())
    dtype = torch.bfloat16 if request.param.endswith("bfloat16") else torch.float32
    provider: LatentCodecProvider = CODECS[request.param]
    provider.check(folder, device=CPU, dtype=dtype)
    with provider.open(folder, device=CPU, dtype=dtype) as opened:
        yield opened


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(("frames", "latents"), [(1, 1), (22, 7), (39, 12)])
def test_pixels_encode_to_normalised_latents(codec: Any, frames: int, latents: int) -> None:
    """17n + 5 frames give 5n + 2 latents, one frame gives one; float32 on the CPU, the same bits every time."""
    pixels = (noise(frames, 32, 64, 3).sigmoid() * 255).to(torch.uint8)
    found = codec.encode_pixels(pixels)
    assert found.shape == (1, 24, latents, 2, 4)
    assert found.dtype is torch.float32
    assert found.isfinite().all()
    torch.testing.assert_close(codec.encode_pixels(pixels), found, rtol=0, atol=0)


@pytest.mark.parametrize("samples", [1, HOP, 3 * HOP + 1])
def test_waveforms_encode_to_whole_latents(codec: Any, samples: int) -> None:
    """Each channel gives one latent a started hop, deterministically."""
    waveform = noise(2, samples).tanh()
    found = codec.encode_waveform(waveform)
    assert found.shape == (2, -(-samples // HOP), 32)
    assert found.dtype is torch.float32
    torch.testing.assert_close(codec.encode_waveform(waveform), found, rtol=0, atol=0)


def test_channels_do_not_mix(codec: Any) -> None:
    """Swapping left and right swaps the latents and the sound, and nothing else."""
    waveform, latents = noise(2, 2 * HOP).tanh(), noise(2, 32, 5)
    swapped = codec.encode_waveform(waveform.flip(0))
    torch.testing.assert_close(swapped, codec.encode_waveform(waveform).flip(0))
    torch.testing.assert_close(codec.decode_audio(latents.flip(0)), codec.decode_audio(latents).flip(0))


@pytest.mark.parametrize("latents", [7, 12, 17])
def test_frames_arrive_in_range_and_number(codec: Any, latents: int) -> None:
    """5n + 2 latents give 17n + 5 frames [f, 3, H, W] in [0, 1], float32 on the CPU, finite and not constant."""
    chunks = list(codec.decode_video(noise(1, 24, latents, 2, 4)))
    frames = torch.cat(chunks)
    assert frames.shape == ((latents - 2) // 5 * 17 + 5, 3, 32, 64)
    assert frames.dtype is torch.float32
    assert frames.min() >= 0
    assert frames.max() <= 1
    assert frames.std() > 0.01


def test_a_prefix_of_windows_decodes_alike(codec: Any) -> None:
    """The first chunk depends on the first window alone, so streaming cannot change it."""
    latents = noise(1, 24, 17, 2, 2)
    torch.testing.assert_close(
        next(codec.decode_video(latents)), next(codec.decode_video(latents[:, :, :7])), rtol=0, atol=0
    )


def test_sound_has_its_length_and_range(codec: Any) -> None:
    """A latents a channel give A hops of samples in [-1, 1]."""
    waveform = codec.decode_audio(noise(2, 32, 9))
    assert waveform.shape == (2, 9 * HOP)
    assert waveform.dtype is torch.float32
    assert waveform.abs().max() <= 1
    assert waveform.std() > 0.001


def test_undecodable_lengths_are_refused(codec: Any) -> None:
    """Two latents are no clip; zero samples are no sound."""
    with pytest.raises(ContractError, match="2 latent frames"):
        list(codec.decode_video(noise(1, 24, 2, 2, 2)))
    with pytest.raises(ContractError, match="no samples"):
        codec.encode_waveform(noise(2, 0))
