"""Engines of the product's own container, with random weights at its ports and nothing else replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen
from dependency_injector import providers

from request_bench.sizes import Scale
from request_bench.weights import RandomOpener
from vflash.container import Container
from vflash.engine import Engine
from vflash.settings import Settings

EXACT = {"linear": "bf16", "weight_residency": "resident"}
APPROXIMATE = {"linear": "w8a8", "weight_residency": "resident", "attention_backend": "veda-meanpool"}
SWAPPED = {"linear": "bf16", "weight_residency": "block-ring", "model_placement": "swap"}
FUSED = {"video_decoder": "fused", "media_video_input": "pipe"}
FUSED_FP8 = {"video_decoder": "fused-fp8", "media_video_input": "pipe"}
FAST_SUMS = {"fp8_fast_accum": True}
ALL_SPARSE = {"veda_dense_edge_layers": 0}
QUICK_ENCODER = {"media_preset": "veryfast"}
DECODERS: Mapping[str, Mapping[str, Any]] = {
    "diffusers one by one": {"video_decoder": "diffusers", "media_video_input": "pipe", "vae_tiles_at_once": 1},
    "fused": FUSED,
    "fused-fp8": FUSED_FP8,
    "diffusers": {"video_decoder": "diffusers", "media_video_input": "pipe"},
}
ON_A_CPU = {"w8a8": "fp8-weight-only"}
"""What takes the place of a choice that only a GPU has, to try the script itself."""


@frozen(kw_only=True, eq=False)
class Engines:
    """`model_dir` holds configs alone."""

    model_dir: Path
    opener: RandomOpener
    scale: Scale

    @contextmanager
    def open(self, options: Mapping[str, Any]) -> Iterator[Engine]:
        engine: Engine = self.container(options).pipeline()
        with engine:
            yield engine

    def container(self, options: Mapping[str, Any]) -> Container:
        chosen: dict[str, Any] = dict(options)
        if not self.scale.real:
            chosen["linear"] = ON_A_CPU.get(chosen["linear"], chosen["linear"])
            if chosen.get("attention_backend", "").startswith("veda"):
                chosen.setdefault("veda_dense_edge_layers", 1)
        container = Container(
            settings=Settings(model_dir=self.model_dir, device=self.scale.device.type, dtype="bfloat16", **chosen)
        )
        container.weights.override(providers.Object(self.opener))
        container.text_encoder_loader.override(providers.Object(self.opener.load_text_encoder))
        return container
