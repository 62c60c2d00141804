"""The video decoder's kernels and choices on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from attrs import evolve

from vflash_adapters.latent_codec.decoder_kernels import head_norm_rope, scaled_residual_norm
from vflash_adapters.latent_codec.diffusers_vaes import DiffusersVaes
from vflash_adapters.latent_codec.tile_attention import (
    TORCH_KERNELS,
    HopperTileAttention,
    SdpaTileAttention,
    tile_attention,
)
from vflash_adapters.latent_codec.video_decoders import VideoDecoder
from vflash_adapters.linear.row_quantiser import quantise_rows
from vflash_adapters.tiny_checkpoint import SMALL, write_tiny_checkpoint
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.linear import ActivationFormat, Fp8Rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
BF16 = torch.bfloat16


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, device=CUDA, generator=torch.Generator(CUDA).manual_seed(seed))


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("width", [96, 2048])
@pytest.mark.parametrize("updated", [False, True])
def test_the_norm_emits_its_dense_rows_quantised(width: int, updated: bool) -> None:
    """Bit by bit, and the stream is the plain one's."""
    from vflash_adapters.latent_codec.triton_residual_norm import triton_residual_norm

    x, weight = draw(333, width, seed=1), draw(width, seed=2)
    options = {"update": draw(333, width, seed=3).to(BF16), "scale": draw(width, seed=4)} if updated else {}
    streams = [x.clone() for _ in range(3)]
    named = {"eps": 1e-5, "dtype": BF16, **options}
    dense = triton_residual_norm(streams[0], weight, **named)
    rows = triton_residual_norm(streams[1], weight, **named, emit=ActivationFormat.FP8_ROWS)
    plain = scaled_residual_norm(streams[2], weight, **named)
    assert all(torch.equal(stream, streams[0]) for stream in streams)
    assert isinstance(dense, torch.Tensor)
    assert isinstance(rows, Fp8Rows)
    expected = quantise_rows(dense)
    assert torch.equal(rows.scales, expected.scales)
    assert torch.equal(rows.codes.view(torch.uint8), expected.codes.view(torch.uint8))
    assert distance(dense, plain) < 1e-3


@pytest.mark.parametrize(("heads", "width", "turning"), [(32, 64, 48), (3, 8, 6), (2, 128, 96)])
def test_the_q_k_norm_is_the_plain_one(heads: int, width: int, turning: int) -> None:
    """Over more rows than angles; v is left alone."""
    from vflash_adapters.latent_codec.triton_head_norm_rope import triton_head_norm_rope

    qkv, angles = draw(4 * 301, 3 * heads * width, seed=5).to(BF16), draw(301, turning // 2, seed=6).repeat(1, 2)
    expected, before = qkv.clone(), qkv.clone()
    head_norm_rope(expected, angles.cos(), angles.sin(), heads=heads, eps=1e-5)
    triton_head_norm_rope(qkv, angles.cos(), angles.sin(), heads=heads, eps=1e-5)
    assert float((qkv != expected).double().mean()) < 2e-3
    assert torch.allclose(qkv.double(), expected.double(), rtol=2**-6, atol=2**-8)
    assert torch.equal(qkv[:, 2 * heads * width :], before[:, 2 * heads * width :])


hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs compute capability 9.0",
)


@hopper
@pytest.mark.parametrize(
    ("tiles", "rows", "heads", "head_dim"), [(3, 1797, 32, 64), (1, 1797, 32, 64), (2, 300, 2, 128)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_our_attention_is_as_near_float64_as_torch_s(
    tiles: int, rows: int, heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    """Relative error at most 1.05 times that of cuDNN plus 1e-4, the same bits twice, and q, k, v are left alone."""
    attention = tile_attention(CUDA, dtype, head_dim)
    assert isinstance(attention, HopperTileAttention)
    qkv = draw(tiles, rows, 3, heads, head_dim, seed=7).to(dtype)
    before = qkv.clone()
    found, again = (attention(*qkv.unbind(2)) for _ in range(2))
    torchs = SdpaTileAttention(kernels=TORCH_KERNELS["cuda"])(*qkv.unbind(2))
    exact = torch.cat([attend_exactly(tile) for tile in qkv])
    assert found.shape == exact.shape
    assert found.is_contiguous()
    assert distance(found, exact) <= 1.05 * distance(torchs, exact) + 1e-4
    assert torch.equal(found, again)
    assert torch.equal(qkv, before)


def attend_exactly(qkv: torch.Tensor) -> torch.Tensor:
    """One tile [rows, 3, heads, head_dim] in float64."""
    q, k, v = qkv.double().permute(1, 2, 0, 3)
    weights = (q @ k.transpose(1, 2) * q.shape[2] ** -0.5).softmax(-1)
    return (weights @ v).transpose(0, 1).flatten(1)


@pytest.fixture(scope="module")
def wide_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with the release's head size of 64 in the video decoder."""
    folder = tmp_path_factory.mktemp("wide-heads") / "checkpoint"
    write_tiny_checkpoint(folder, dimensions=evolve(SMALL, vae={**SMALL.vae, "decoder_attention_head_dim": 64}))
    return folder


@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize(("decoder", "tolerance"), [(VideoDecoder.FUSED, 1e-2), (VideoDecoder.FUSED_FP8, 3e-2)])
def test_a_clip_is_near_the_cpu_s(
    tiny_checkpoints: Mapping[str, Path],
    wide_heads: Path,
    held: Callable[[], int],
    decoder: VideoDecoder,
    tolerance: float,
    head_dim: int,
) -> None:
    """Several tiles and windows in BF16, against diffusers' own on the CPU; nothing stays on the device."""
    folder = {16: tiny_checkpoints["small"], 64: wide_heads}[head_dim]
    before, clips = held(), []
    latents = torch.randn(1, 24, 12, 18, 20, generator=torch.Generator().manual_seed(3))
    for choice, device in ((VideoDecoder.DIFFUSERS, CPU), (decoder, CUDA)):
        codecs = DiffusersVaes(weights=MmapWeights, video_decoder=choice, tiles_at_once=3)
        codecs.check(folder, device=device, dtype=BF16)
        with codecs.open(folder, device=device, dtype=BF16) as codec:
            clips.append(torch.cat(list(codec.decode_video(latents))).cpu())
    assert distance(clips[1], clips[0]) < tolerance
    assert held() == before
