"""Whole requests from files against the public reference: what it was given, what it makes, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from attrs import frozen
from dependency_injector import providers
from oracle import MODES, Oracle, OracleRequest, OracleResult, picture
from recording import RecordingCodecs, RecordingSink, RecordingTextEncoders
from written_media import request_from_files

from vflash.container import Container
from vflash.engine import Engine
from vflash.settings import Settings
from vflash_adapters.media.latent_store import SafetensorsLatentStore
from vflash_ports.media import Latents

CASES = [(variant, mode) for variant in ("small", "other") for mode in MODES]
EXTRA = OracleRequest(height=96, width=288, first=picture(40, 110, seed=9), evaluations=2)
"""A wide canvas, above one VAE tile of 256 pixels."""


@frozen(kw_only=True, eq=False)
class Bench:
    """One pipeline kept alive, and what passes between its stages."""

    engine: Engine
    encoders: RecordingTextEncoders
    codecs: RecordingCodecs
    sink: RecordingSink

    def run(self, asked: OracleRequest, folder: Path) -> Latents:
        """The final latents, as a user would keep them."""
        self.codecs.clear()
        saved = folder / "kept.safetensors"
        self.engine.generate(request_from_files(asked, folder, save_latents=saved), folder / "clip.mp4")
        return SafetensorsLatentStore().load(saved)


def bench(checkpoint: Path, dtype: str) -> Bench:
    container = Container(settings=Settings(model_dir=checkpoint, device="cpu", dtype=dtype))
    encoders = RecordingTextEncoders(container.text_encoder())
    codecs, sink = RecordingCodecs(container.latent_codec()), RecordingSink()
    container.text_encoder.override(providers.Object(encoders))
    container.latent_codec.override(providers.Object(codecs))
    container.sink.override(providers.Object(sink))
    return Bench(engine=container.pipeline(), encoders=encoders, codecs=codecs, sink=sink)


@pytest.fixture(scope="module")
def benches(tiny_checkpoints: Mapping[str, Path]) -> Iterator[Mapping[str, Bench]]:
    """A float32 pipeline for each checkpoint, opened once for all of its modes."""
    opened = {variant: bench(folder, "float32") for variant, folder in tiny_checkpoints.items()}
    yield opened
    for item in opened.values():
        item.engine.close()


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


def compare(found: Bench, latents: Latents, expected: OracleResult) -> None:
    """Conditioning is bit-equal; latents agree within 1e-5 relative, pixels within 1/255, sound within 1e-4."""
    conditioning = found.encoders.conditioning
    assert conditioning is not None
    assert torch.equal(conditioning.embeds, expected.prompt_embeds)
    assert torch.equal(conditioning.tags, expected.text_token_tags)
    for ours, theirs in zip(found.codecs.video_conditions, expected.condition_latents, strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(found.codecs.audio_conditions, expected.audio_condition_latents, strict=True):
        assert torch.equal(ours.flatten(0, 1), theirs)
    assert relative(latents.video, expected.latents) < 1e-5
    assert relative(latents.audio, expected.audio_latents) < 1e-5
    # The model makes 124 frames for 5 s; 120 of them are delivered.
    assert (found.sink.frames - expected.frames[:120]).abs().max() < 1 / 255
    assert (found.sink.waveform - expected.waveform[:, :160_000]).abs().max() < 1e-4


@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_a_request_from_files_equals_the_reference(variant, mode, benches, oracle: Oracle, tiny_checkpoints, tmp_path):
    """Every mode, on two checkpoints that share no width: the same prompt, media and seed give the same clip."""
    found = benches[variant]
    latents = found.run(oracle.request(mode), tmp_path)
    compare(found, latents, oracle.mode(tiny_checkpoints[variant], mode))


def test_a_wide_canvas_above_one_tile_equals_the_reference(benches, oracle: Oracle, tiny_checkpoints, tmp_path):
    """288 x 96: the VAE's tiles overlap, and swapping height and width anywhere would show."""
    latents = benches["small"].run(EXTRA, tmp_path)
    compare(benches["small"], latents, oracle.run(tiny_checkpoints["small"], EXTRA))


def test_bfloat16_stays_within_the_reference_s_own_rounding(oracle: Oracle, tiny_checkpoints, tmp_path):
    """Ours in BF16 is as near to the float32 reference as the reference in BF16 is."""
    asked, checkpoint = OracleRequest(), tiny_checkpoints["small"]
    exact, rounded = (oracle.run(checkpoint, asked, dtype=dtype) for dtype in ("float32", "bfloat16"))
    found = bench(checkpoint, "bfloat16")
    with found.engine:
        latents = found.run(asked, tmp_path)
    assert found.encoders.conditioning is not None
    assert found.encoders.conditioning.embeds.dtype is torch.bfloat16
    pairs = (
        (latents.video, rounded.latents, exact.latents),
        (latents.audio, rounded.audio_latents, exact.audio_latents),
        (found.sink.frames, rounded.frames[:120], exact.frames[:120]),
    )
    for ours, theirs, truth in pairs:
        assert 0 < relative(ours, truth) <= relative(theirs, truth)
