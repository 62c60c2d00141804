"""The latent codec against the reference: condition latents, frames and sound are bit-equal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from oracle import MODES, Oracle, OracleRequest, OracleResult, picture

from vflash_adapters.latent_codec.diffusers_vaes import DiffusersVaes
from vflash_adapters.latent_codec.video_decoders import VideoDecoder
from vflash_adapters.weights.mmap_source import MmapWeights

CPU = torch.device("cpu")
CODECS = DiffusersVaes(weights=MmapWeights)


def conditions(result: OracleResult) -> list[torch.Tensor]:
    """Pictures and clips [F, H, W, 3] in packed order; a clip is cut down to 17n + 5 frames before it is encoded."""
    given = [pixels if pixels.ndim == 4 else pixels[None] for pixels in (*result.keyframes, *result.reference_pixels)]
    return [frames if len(frames) == 1 else frames[: (len(frames) - 5) // 17 * 17 + 5] for frames in given]


def equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("variant", ["small", "other"])
def test_every_mode_is_bit_equal(oracle: Oracle, tiny_checkpoints: Mapping[str, Path], variant: str) -> None:
    """Conditions encode, and final latents decode window by window, to the reference's own bits in every mode."""
    checkpoint = tiny_checkpoints[variant]
    with CODECS.open(checkpoint, device=CPU, dtype=torch.float32) as codec:
        for mode in MODES:
            result = oracle.mode(checkpoint, mode)
            for pixels, expected in zip(conditions(result), result.condition_latents, strict=True):
                equal(codec.encode_pixels(pixels), expected)
            sounds = zip(result.reference_waveforms, result.audio_condition_latents, strict=True)
            for waveform, rows in sounds:
                equal(codec.encode_waveform(waveform).flatten(0, 1), rows)
            equal(torch.cat(list(codec.decode_video(result.latents))), result.frames)
            equal(codec.decode_audio(result.audio_latents), result.waveform)


def test_above_one_tile(oracle: Oracle, tiny_checkpoints: Mapping[str, Path]) -> None:
    """A canvas wider than one tile, and a picture on it, go through the same tiling."""
    checkpoint = tiny_checkpoints["small"]
    request = OracleRequest(height=32, width=288, first=picture(40, 310, seed=9), evaluations=1)
    result = oracle.run(checkpoint, request)
    with CODECS.open(checkpoint, device=CPU, dtype=torch.float32) as codec:
        equal(codec.encode_pixels(result.keyframes[0][None]), result.condition_latents[0])
        equal(torch.cat(list(codec.decode_video(result.latents))), result.frames)


def test_bfloat16_follows_the_released_precision(oracle: Oracle, tiny_checkpoints: Mapping[str, Path]) -> None:
    """In BF16 the same modules stay in FP32 as in the reference, so pixels and sound are still bit-equal."""
    checkpoint = tiny_checkpoints["small"]
    result = oracle.run(checkpoint, oracle.request("i2va"), dtype="bfloat16")
    with CODECS.open(checkpoint, device=CPU, dtype=torch.bfloat16) as codec:
        equal(codec.encode_pixels(conditions(result)[0]), result.condition_latents[0])
        equal(torch.cat(list(codec.decode_video(result.latents))), result.frames)
        equal(codec.decode_audio(result.audio_latents), result.waveform)


def test_fp8_stays_near_the_reference_s_pixels(oracle: Oracle, tiny_checkpoints: Mapping[str, Path]) -> None:
    """At least 48 dB from the reference's BF16 frames as 8-bit pictures (measured: 51.0); 60 is too near for FP8."""
    checkpoint = tiny_checkpoints["small"]
    result = oracle.run(checkpoint, oracle.request("i2va"), dtype="bfloat16")
    codecs = DiffusersVaes(weights=MmapWeights, video_decoder=VideoDecoder.FUSED_FP8, tiles_at_once=3)
    with codecs.open(checkpoint, device=CPU, dtype=torch.bfloat16) as codec:
        found = torch.cat(list(codec.decode_video(result.latents)))
    steps = (found * 255).round() - (result.frames * 255).round()
    psnr_db = 20 * math.log10(255) - 10 * math.log10(float(steps.double().square().mean()))
    assert 48 < psnr_db < 60
