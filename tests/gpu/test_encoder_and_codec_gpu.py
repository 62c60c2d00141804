"""The text encoder and the latent codec on the device: near the CPU's values, and gone after their scopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from vflash_adapters.latent_codec.diffusers_vaes import DiffusersVaes
from vflash_adapters.text_encoder.qwen3_vl import Qwen3VLProvider
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.text_encoder import PicturePart, TextPart

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PIXELS = (torch.arange(96 * 128 * 3).reshape(96, 128, 3) % 256).to(torch.uint8)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.cpu().double() - expected.double()).norm() / expected.double().norm())


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("variant", ["small", "other"])
def test_text_encoder_agrees_with_the_cpu(
    tiny_checkpoints: Mapping[str, Path],
    held: Callable[[], int],
    variant: str,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    """Embeddings are on the device in the asked dtype, rotary buffers in FP32, values near the CPU's float64 ones.

    The CPU's float32 is 1.0e-6 and 0.8e-6 from them; with TF32 in the patch embedding alone it is 2.1e-4 and 3.0e-4.
    """
    provider, parts = Qwen3VLProvider(hidden_state_index=50), [PicturePart(pixels=PIXELS), TextPart(text="a fox")]
    with provider.open(tiny_checkpoints[variant], device=CPU, dtype=torch.float64) as encoder:
        expected = encoder.encode(parts).embeds
    before = held()
    with provider.open(tiny_checkpoints[variant], device=CUDA, dtype=dtype) as encoder:
        assert {buffer.dtype for buffer in encoder._model.buffers()} == {torch.float32}
        embeds = encoder.encode(parts).embeds
    assert embeds.device == CUDA
    assert embeds.dtype is dtype
    assert distance(embeds, expected) < tolerance
    del embeds
    assert held() == before


@pytest.mark.parametrize("variant", ["small", "other"])
def test_latent_codec_agrees_with_the_cpu(
    tiny_checkpoints: Mapping[str, Path], held: Callable[[], int], variant: str
) -> None:
    """In float32, frames on the device and the rest on the CPU. TF32's rounding, imitated on the CPU, moves frames,
    sound and encodings by 1.3e-4, 7.6e-4, 4.7e-4 and 4.5e-3 at least."""
    codecs, found = DiffusersVaes(weights=MmapWeights), []
    precision = torch.backends.cudnn.conv.fp32_precision
    before = held()
    for device in (CPU, CUDA):
        with codecs.open(tiny_checkpoints[variant], device=device, dtype=torch.float32) as codec:
            video = torch.cat(list(codec.decode_video(noise(1, 24, 12, 4, 6)))).cpu()
            sound = codec.decode_audio(noise(2, 32, 9))
            encoded = codec.encode_pixels(PIXELS[None]), codec.encode_waveform(noise(2, 4000).tanh())
        found.append((video, sound, *encoded))
    for expected, seen, tolerance in zip(*found, (5e-5, 1e-4, 1e-4, 5e-4), strict=True):
        assert seen.device == CPU
        assert seen.dtype is torch.float32
        assert distance(seen, expected) < tolerance
    assert torch.backends.cudnn.conv.fp32_precision == precision
    assert held() == before
