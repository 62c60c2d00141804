"""The text encoder adapter against the reference: ids, vision inputs, tags and embeddings are bit-equal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from oracle import MODES, Oracle, OracleRequest, OracleResult, Picture, Video

from vflash_adapters.text_encoder.presentation import Presenter
from vflash_adapters.text_encoder.qwen3_vl import Qwen3VLProvider
from vflash_ports.text_encoder import Part, PicturePart, TextPart, VideoPart

CPU = torch.device("cpu")


def presentation(request: OracleRequest, result: OracleResult) -> list[Part]:
    """The released wording, over the pictures as the reference put them on their canvas."""
    parts: list[Part] = []
    for number, pixels in enumerate(result.keyframes, start=1):
        parts += [TextPart(text=f"<Picture {number}>: "), PicturePart(pixels=pixels)]
    pixels_left = list(result.reference_pixels)
    counts = {"Picture": 0, "Video": 0, "Audio": 0}

    def label(kind: str) -> TextPart:
        counts[kind] += 1
        return TextPart(text=f"<{kind} {counts[kind]}>: ")

    for given in request.references:
        if getattr(given, "waveform", None) is not None:
            parts.append(label("Audio"))
        if isinstance(given, Picture):
            parts += [label("Picture"), PicturePart(pixels=pixels_left.pop(0))]
        elif isinstance(given, Video):
            frames = pixels_left.pop(0)[::12]
            times = [k / 2 for k in range(len(frames))]
            times += times[-1:] * (len(times) % 2)
            pairs = tuple((a + b) / 2 for a, b in zip(times[::2], times[1::2], strict=True))
            parts += [label("Video"), VideoPart(frames=frames, pair_seconds=pairs)]
    return [*parts, TextPart(text=request.prompt)]


@pytest.mark.parametrize("variant", ["small", "other"])
@pytest.mark.parametrize("mode", MODES)
def test_inputs_are_the_reference_s(
    oracle: Oracle, tiny_checkpoints: Mapping[str, Path], variant: str, mode: str
) -> None:
    """Token ids, token types, tags, pixel values and grids equal the public processor's, without torchvision."""
    result = oracle.mode(tiny_checkpoints[variant], mode)
    inputs = Presenter.read(tiny_checkpoints[variant]).present(presentation(oracle.request(mode), result))
    torch.testing.assert_close(inputs.ids, result.token_ids, rtol=0, atol=0)
    torch.testing.assert_close(inputs.types, result.mm_token_type_ids, rtol=0, atol=0)
    torch.testing.assert_close(inputs.tags, result.text_token_tags, rtol=0, atol=0)
    for name in ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw"):
        expected = getattr(result, name)
        assert (name in inputs.vision) == (expected is not None)
        if expected is not None:
            torch.testing.assert_close(inputs.vision[name], expected, rtol=0, atol=0)


@pytest.mark.parametrize("variant", ["small", "other"])
def test_embeddings_are_the_reference_s(oracle: Oracle, tiny_checkpoints: Mapping[str, Path], variant: str) -> None:
    """hidden_states[50] of the 51-layer prefix is bit-equal to the whole encoder's, in every mode."""
    checkpoint = tiny_checkpoints[variant]
    with Qwen3VLProvider(hidden_state_index=50).open(checkpoint, device=CPU, dtype=torch.float32) as encoder:
        for mode in MODES:
            result = oracle.mode(checkpoint, mode)
            found = encoder.encode(presentation(oracle.request(mode), result))
            torch.testing.assert_close(found.embeds, result.prompt_embeds, rtol=0, atol=0)
            torch.testing.assert_close(found.tags, result.text_token_tags, rtol=0, atol=0)


def test_bfloat16_embeddings_are_the_reference_s(oracle: Oracle, tiny_checkpoints: Mapping[str, Path]) -> None:
    """In BF16 too, because the rotary frequencies stay FP32 on both sides."""
    checkpoint = tiny_checkpoints["small"]
    request = oracle.request("i2va")
    result = oracle.run(checkpoint, request, dtype="bfloat16")
    with Qwen3VLProvider(hidden_state_index=50).open(checkpoint, device=CPU, dtype=torch.bfloat16) as encoder:
        found = encoder.encode(presentation(request, result))
    torch.testing.assert_close(found.embeds, result.prompt_embeds, rtol=0, atol=0)
