"""What the core tests share: the facts of a checkpoint with the released geometry, and requests on it."""

from __future__ import annotations

import pytest

from vflash.domain.model_facts import CodecFacts, DenoiserFacts, GeometryFacts, ModelFacts


@pytest.fixture(scope="session")
def facts() -> ModelFacts:
    """The released model's geometry and widths."""
    codec = CodecFacts(
        latent_channels=24,
        spatial_ratio=16,
        clip_frames=17,
        clip_latents=5,
        audio_latent_channels=32,
        sample_rate_hz=32_000,
        hop=800,
    )
    return ModelFacts(
        denoiser=DenoiserFacts(), codec=codec, geometry=GeometryFacts(), video_shift=12.0, audio_shift=3.0
    )
