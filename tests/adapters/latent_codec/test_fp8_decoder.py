"""The video decoder in FP8: the VAE's own layers over W8A8 linears, every one of them, near the exact pixels."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

from vflash_adapters.latent_codec.diffusers_vaes import DiffusersVaes
from vflash_adapters.latent_codec.load_vae import VIDEO_VAE, load_vae
from vflash_adapters.latent_codec.video_decoders import VideoDecoder, tile_decoder
from vflash_adapters.linear import row_fp8
from vflash_adapters.linear.row_fp8 import RowFP8Execution
from vflash_adapters.linear.row_fp8_linear import RowFP8Linear
from vflash_adapters.linear.row_quantiser import quantise_rows
from vflash_adapters.tiny_checkpoint import SMALL, write_tiny_checkpoint
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import CheckpointError, NonFiniteError, UnsupportedError

CPU = torch.device("cpu")
FP8 = DiffusersVaes(weights=MmapWeights, video_decoder=VideoDecoder.FUSED_FP8)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random VAE of four layers, 128 wide, with the release's SwiGLU of four times that."""
    widths = {"decoder_num_layers": 4, "decoder_num_attention_heads": 4, "decoder_attention_head_dim": 32}
    folder = tmp_path_factory.mktemp("wide") / "checkpoint"
    write_tiny_checkpoint(folder, dimensions=evolve(SMALL, vae={**SMALL.vae, **widths, "decoder_ffn_mult": 4}))
    return folder


def video_vae(folder: Path, dtype: torch.dtype = torch.bfloat16) -> Any:
    return load_vae(VIDEO_VAE, folder, weights=MmapWeights, device=CPU, dtype=dtype)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).bfloat16()


@torch.no_grad()
def decoded(vae: Any, decoder: VideoDecoder, tiles: torch.Tensor) -> torch.Tensor:
    return tile_decoder(vae, decoder, CPU)(tiles).double()


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def over_w8a8_linears(vae: Any) -> Any:
    """The same module, with the linears of its blocks replaced."""
    execution = RowFP8Execution("w8a8", activation_quantizer="torch")
    blocks = vae.decoder.transformer_blocks
    for name, linear in [item for item in blocks.named_modules() if isinstance(item[1], nn.Linear)]:
        rows, replacement = quantise_rows(linear.weight), RowFP8Linear(linear, execution)
        replacement.fill(rows.codes, rows.scales)
        parent, _, leaf = name.rpartition(".")
        setattr(blocks.get_submodule(parent), leaf, replacement)
    return vae


def own(vae: Any, tiles: torch.Tensor) -> torch.Tensor:
    return decoded(vae, VideoDecoder.DIFFUSERS, tiles)


def test_it_is_the_vae_over_w8a8_linears(wide: Path) -> None:
    """diffusers' decoder with every linear of its blocks replaced, within a rounding of BF16; measured: the same bits.

    Against the exact decoder it is 2.7 % of the pixels' norm away (measured); 4 % is allowed, and less than 1 % would
    mean that something was left out.
    """
    tiles = noise(3, 24, 7, 6, 10)
    found, exact = decoded(video_vae(wide), VideoDecoder.FUSED_FP8, tiles), own(video_vae(wide), tiles)
    assert found.shape == (3, 3, 28, 96, 160)
    assert distance(found, own(over_w8a8_linears(video_vae(wide)), tiles)) < 2**-9
    assert 0.01 < distance(found, exact) < 0.04


def test_every_linear_of_every_block_is_used(wide: Path) -> None:
    """Halving one weight before the clip shows in the pixels: none is skipped, none is kept from another clip."""
    vae, tiles = video_vae(wide), noise(1, 24, 7, 2, 2)
    before = decoded(vae, VideoDecoder.FUSED_FP8, tiles)
    for linear in [module for module in vae.decoder.transformer_blocks.modules() if isinstance(module, nn.Linear)]:
        whole = linear.weight.data.clone()
        linear.weight.data.mul_(0.5)
        assert distance(decoded(vae, VideoDecoder.FUSED_FP8, tiles), before) > 1e-4
        linear.weight.data.copy_(whole)


def test_tiles_do_not_share_their_scales(wide: Path) -> None:
    """A row is scaled by itself alone: a loud tile beside a quiet one changes nothing in it."""
    vae, quiet = video_vae(wide), noise(1, 24, 7, 2, 2)
    alone = decoded(vae, VideoDecoder.FUSED_FP8, quiet)
    beside = decoded(vae, VideoDecoder.FUSED_FP8, torch.cat([quiet, 50 * quiet.flip(1)]))
    assert torch.equal(alone, beside[:1])


def test_the_vae_is_left_as_it_was(wide: Path) -> None:
    """Codes are copies that live for one clip; the module keeps its BF16 weights and runs on, bit for bit."""
    vae, tiles = video_vae(wide), noise(1, 24, 7, 2, 2)
    before = own(vae, tiles)
    decoded(vae, VideoDecoder.FUSED_FP8, tiles)
    assert torch.equal(own(vae, tiles), before)


def test_a_damaged_weight_is_named_by_the_clip(wide: Path) -> None:
    """NaN in one weight is never hidden by the quantiser: the first clip is refused."""
    with FP8.open(wide, device=CPU, dtype=torch.bfloat16) as codec:
        codec._vae(VIDEO_VAE).decoder.transformer_blocks[2].ff.net[2].weight.data[3, 5] = torch.nan
        with pytest.raises(NonFiniteError, match="decoded video clip 0"):
            next(codec.decode_video(noise(1, 24, 7, 2, 2).float()))


def test_what_cannot_run_is_refused_with_the_cure(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another dtype, a GPU that is not admitted, a width that FP8 products do not take, a missing configuration."""
    folder = tiny_checkpoints["small"]
    FP8.check(folder, device=CPU, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match=r"runs in bfloat16, not torch\.float32: choose dtype bfloat16"):
        FP8.check(folder, device=CPU, dtype=torch.float32)
    with pytest.raises(UnsupportedError, match="a multiple of 16, not 24: choose video decoder 'fused' or 'diffusers'"):
        FP8.check(tiny_checkpoints["other"], device=CPU, dtype=torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        FP8.check(tmp_path, device=CPU, dtype=torch.bfloat16)
    for capability in ((8, 0), (8, 9), (10, 0)):
        row_fp8._capability.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        with pytest.raises(UnsupportedError, match=r"admitted on compute capability 9\.0 and 12\.0, not on cuda"):
            FP8.check(folder, device=torch.device("cuda"), dtype=torch.bfloat16)
    row_fp8._capability.cache_clear()


@pytest.mark.parametrize("decoder", [VideoDecoder.FUSED, VideoDecoder.FUSED_FP8])
def test_a_missing_triton_is_found_out_before_loading(
    tiny_checkpoints: Mapping[str, Path], decoder: VideoDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA the fused decoders run on Triton; diffusers' own needs nothing, not even a configuration."""
    module = "vflash_adapters.block_kernels.triton_kernels"
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr(module, raising=False)
    cuda = torch.device("cuda")
    with pytest.raises(UnsupportedError, match="vflash\\[gpu\\]"):
        DiffusersVaes(weights=MmapWeights, video_decoder=decoder).check(
            tiny_checkpoints["small"], device=cuda, dtype=torch.bfloat16
        )
    DiffusersVaes(weights=MmapWeights).check(Path("nowhere"), device=cuda, dtype=torch.bfloat16)
