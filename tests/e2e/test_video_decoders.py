"""How the video VAE's decoder runs, through whole requests: named in every receipt, refused before weights load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recording import RecordingSink

from vflash.domain.choices import VideoDecoderChoice
from vflash_adapters.latent_codec.video_decoders import VideoDecoder
from vflash_ports.errors import UnsupportedError

NAMES = ["diffusers", "fused", "fused-fp8"]


def test_settings_and_adapter_know_the_same_decoders() -> None:
    """One list of names in two rings."""
    assert [list(map(str, names)) for names in (VideoDecoderChoice, VideoDecoder)] == 2 * [NAMES]


@pytest.mark.parametrize("decoder", NAMES)
def test_the_receipt_names_what_decoded(make: Any, ask: Any, tmp_path: Path, decoder: str) -> None:
    """Of a request, and of a later decoding of its latents by another decoder."""
    engine = make(real=True, sink=RecordingSink(), dtype="bfloat16", video_decoder=decoder)
    kept = tmp_path / "kept.safetensors"
    made = engine.generate(ask(save_latents=kept), tmp_path / "made.mp4")
    assert made.receipt["backends"]["video_decoder"] == decoder
    assert made.receipt["backends"]["vae_tiles_at_once"] == 1
    other = make(real=True, sink=RecordingSink(), dtype="bfloat16", video_decoder="fused", vae_tiles_at_once=2)
    again = other.decode(kept, tmp_path / "again.mp4")
    names = ("device", "dtype", "video_decoder", "vae_tiles_at_once")
    assert [again.receipt["backends"][name] for name in names] == ["cpu", "bfloat16", "fused", 2]


def test_what_cannot_decode_is_refused_before_anything_loads(make: Any, ask: Any, tmp_path: Path) -> None:
    """FP8 decodes in bfloat16 alone: each way in says so, and nothing is written."""
    latents = tmp_path / "kept.safetensors"
    make().generate(ask(save_latents=latents), tmp_path / "made.mp4")
    before = sorted(tmp_path.iterdir())
    engine = make(real=True, sink=RecordingSink(), video_decoder="fused-fp8")
    for run in (
        engine.prepare,
        lambda: engine.plan(ask()),
        lambda: engine.generate(ask(), tmp_path / "new.mp4"),
        lambda: engine.decode(latents, tmp_path / "new.mp4"),
    ):
        with pytest.raises(UnsupportedError, match=r"'fused-fp8' runs in bfloat16, not torch\.float32"):
            run()
    assert engine.initialization_seconds == 0
    assert sorted(tmp_path.iterdir()) == before
