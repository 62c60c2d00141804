"""Engines of the product's own container, with random weights at its ports and nothing else replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import evolve, frozen
from dependency_injector import providers

from request_bench.sizes import Scale
from request_bench.weights import RandomOpener
from vflash.container import Container
from vflash.domain.choices import VideoDecoderChoice
from vflash.engine import Engine
from vflash.settings import Settings
from vflash.stages.models import Models

EXACT = {"linear": "bf16", "weight_residency": "resident"}
APPROXIMATE = {"linear": "w8a8", "weight_residency": "resident", "attention_backend": "veda-meanpool"}
SWAPPED = {"linear": "bf16", "weight_residency": "block-ring", "model_placement": "swap"}
FASTEST_DECODER = str(VideoDecoderChoice.FUSED_FP8)
OTHER_DECODERS = tuple(str(choice) for choice in VideoDecoderChoice if choice is not VideoDecoderChoice.DIFFUSERS)
ON_A_CPU = {"w8a8": "fp8-weight-only"}
"""What takes the place of a choice that only a GPU has, to try the script itself."""


@frozen(kw_only=True, eq=False)
class Engines:
    """`model_dir` holds configs alone."""

    model_dir: Path
    opener: RandomOpener
    scale: Scale

    @contextmanager
    def open(self, options: Mapping[str, str]) -> Iterator[tuple[Engine, Models]]:
        container = self.container(options)
        models: Models = container.models()
        engine: Engine = container.pipeline(models=models)
        with engine:
            yield engine, models

    @contextmanager
    def open_beside(self, options: Mapping[str, str], models: Models, decoder: str) -> Iterator[Engine]:
        """The same encoder and denoiser, with VAEs of its own and another video decoder."""
        container = self.container({**options, "video_decoder": decoder})
        codec = container.models().codec
        engine: Engine = container.pipeline(models=evolve(models, codec=codec))
        try:
            yield engine
        finally:
            codec.close()

    def container(self, options: Mapping[str, str]) -> Container:
        chosen: dict[str, Any] = dict(options)
        if not self.scale.real:
            chosen["linear"] = ON_A_CPU.get(chosen["linear"], chosen["linear"])
            if chosen.get("attention_backend", "").startswith("veda"):
                chosen["veda_dense_edge_layers"] = 1
        container = Container(
            settings=Settings(model_dir=self.model_dir, device=self.scale.device.type, dtype="bfloat16", **chosen)
        )
        container.weights.override(providers.Object(self.opener))
        container.text_encoder_loader.override(providers.Object(self.opener.load_text_encoder))
        return container
