"""Who attends in the fused video decoder: chosen by device, dtype and head size alone, and exact."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vflash_adapters.latent_codec.tile_attention import (
    TORCH_KERNELS,
    HopperTileAttention,
    SdpaTileAttention,
    _test_once,
    check_tile_attention,
    tile_attention,
)
from vflash_adapters.latent_codec.video_decoders import VideoDecoder, check_video_decoder, fused_kernels
from vflash_ports.errors import UnsupportedError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FUSED = (VideoDecoder.FUSED, VideoDecoder.FUSED_FP8)
MODULE = "vflash_adapters.latent_codec.tile_attention"


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    def on(major: int, minor: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))

    return on


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Self-tests that were made, as (head size, rows), instead of making them on a device that is not here."""
    made: list[tuple[int, int]] = []

    def check(attend: Any, device: Any, dtype: Any, head_dim: int, rows: int, *, what: str, cure: str) -> None:
        made.append((head_dim, rows))

    monkeypatch.setattr(f"{MODULE}.check_dense", check)
    monkeypatch.setattr(f"{MODULE}._test_once", _test_once.__wrapped__)
    return made


def test_our_kernel_attends_on_9_0_alone(on: Callable[[int, int], None]) -> None:
    """In 16 bits, with heads of 64 or 128; all else runs on torch's kernels of the device."""
    on(9, 0)
    for dtype, head_dim in itertools.product((BF16, F16, F32), (16, 32, 64, 96, 128, 256)):
        ours = dtype is not F32 and head_dim in (64, 128)
        assert isinstance(tile_attention(CUDA, dtype, head_dim), HopperTileAttention if ours else SdpaTileAttention)
    assert tile_attention(CUDA, F32, 64) == SdpaTileAttention(kernels=TORCH_KERNELS["cuda"])
    assert tile_attention(CPU, BF16, 64) == SdpaTileAttention(kernels=TORCH_KERNELS["cpu"])
    for capability in ((8, 0), (8, 9), (10, 0), (12, 0)):
        on(*capability)
        assert tile_attention(CUDA, BF16, 64) == SdpaTileAttention(kernels=TORCH_KERNELS["cuda"])


def test_it_is_chosen_by_the_vae_s_own_sizes(on: Callable[[int, int], None]) -> None:
    """Head size and dtype of the decoder that is loaded."""
    on(9, 0)
    chosen = [fused_kernels(vae(head_dim, dtype), CUDA).attention for head_dim, dtype in ((64, BF16), (16, BF16))]
    assert [type(attention) for attention in chosen] == [HopperTileAttention, SdpaTileAttention]


@pytest.mark.parametrize("decoder", FUSED)
def test_a_triton_without_gluon_is_found_out_before_loading(
    decoder: VideoDecoder, on: Callable[[int, int], None], asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where the kernel would run: never replaced by torch's, and no obstacle elsewhere."""
    monkeypatch.setattr("triton.__version__", "3.5.1")
    on(9, 0)
    with pytest.raises(UnsupportedError, match=r"Triton 3\.6 or later.*not 3\.5\.1.*choose video decoder 'diffusers'"):
        check_video_decoder(decoder, {}, device=CUDA, dtype=BF16)
    check_video_decoder(decoder, {"decoder_attention_head_dim": 32}, device=CUDA, dtype=BF16)
    check_video_decoder(VideoDecoder.DIFFUSERS, {}, device=CUDA, dtype=BF16)
    on(12, 0)
    check_video_decoder(decoder, {}, device=CUDA, dtype=BF16)
    on(9, 0)
    for version in ("3.6.0", "3.6rc1", "3.10.1+git1234", "4.0.0"):
        monkeypatch.setattr("triton.__version__", version)
        check_video_decoder(decoder, {}, device=CUDA, dtype=BF16)
    assert asked == [(64, 517)] * 4


def test_a_kernel_that_is_wrong_is_found_out_before_loading(
    on: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an answer of its own on the device, which is asked for once; torch's kernels are not asked."""
    on(9, 0)
    made = []

    def wrong(q_BSHD: torch.Tensor, k_BSHD: torch.Tensor, v_BSHD: torch.Tensor, out_BSHD: Any) -> torch.Tensor:
        made.append(q_BSHD.shape)
        attend_naively(q_BSHD, k_BSHD, v_BSHD, out_BSHD)[:, -1] *= 2.0
        return out_BSHD

    monkeypatch.setattr(f"{MODULE}.admits", lambda device, dtype, head_dim: head_dim == 64)
    monkeypatch.setattr(f"{MODULE}.dense_attend", lambda what, cure: wrong)
    with pytest.raises(UnsupportedError, match=r"fused video decoder failed its self-test.*video decoder 'diffusers'"):
        check_video_decoder(VideoDecoder.FUSED, {}, device=CPU, dtype=F16)
    assert made == [(2, 517, 66, 64)] * 2
    monkeypatch.setattr(f"{MODULE}.dense_attend", lambda what, cure: attend_naively)
    for _ in range(2):
        check_tile_attention(CPU, F16, 64)
    monkeypatch.setattr(f"{MODULE}.dense_attend", lambda what, cure: wrong)
    check_tile_attention(CPU, F16, 64)
    check_tile_attention(CPU, F16, 32)
    assert len(made) == 2
    _test_once.cache_clear()


def test_triton_is_not_imported_without_need() -> None:
    """A machine that has none decodes on its CPU."""
    code = "import sys, vflash_adapters.latent_codec.video_decoders; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def attend_naively(q_BSHD: torch.Tensor, k_BSHD: torch.Tensor, v_BSHD: torch.Tensor, out_BSHD: Any) -> torch.Tensor:
    scores = torch.einsum("bshd,bthd->bhst", q_BSHD.double(), k_BSHD.double()) * q_BSHD.shape[-1] ** -0.5
    made: torch.Tensor = out_BSHD.copy_(torch.einsum("bhst,bthd->bshd", scores.softmax(-1), v_BSHD.double()))
    return made


@pytest.mark.parametrize(
    "attention", [SdpaTileAttention(kernels=TORCH_KERNELS["cpu"]), HopperTileAttention(attend=attend_naively)]
)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_every_tile_attends_to_itself(attention: Any, dtype: torch.dtype) -> None:
    """Thirds of one projection, left alone, become contiguous rows of all heads side by side."""
    tiles, rows, heads, head_dim = 3, 37, 2, 16
    qkv = torch.randn(tiles, rows, 3, heads, head_dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = qkv.clone()
    found = attention(*qkv.unbind(2))
    expected = attend_naively(*qkv.unbind(2), torch.empty(tiles, rows, heads, head_dim, dtype=torch.float64))
    assert found.shape == (tiles * rows, heads * head_dim)
    assert found.is_contiguous()
    assert found.dtype is dtype
    assert torch.equal(qkv, before)
    tolerance = 1e-5 if dtype is F32 else 1e-2
    torch.testing.assert_close(found.double(), expected.flatten(2).flatten(0, 1), rtol=tolerance, atol=tolerance)


class Named(dict[str, Any]):
    __getattr__ = dict.__getitem__


def vae(head_dim: int, dtype: torch.dtype) -> Any:
    """As much of one as the choice reads."""
    out = Named(weight=torch.empty(1, dtype=dtype))
    return Named(config=Named(decoder_attention_head_dim=head_dim), decoder=Named(proj_out=out))
