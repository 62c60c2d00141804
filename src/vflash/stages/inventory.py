"""What the parts of a checkpoint weigh, from their headers and configs alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from vflash.domain.memory import ModelBytes, PartBytes
from vflash.domain.model_facts import TEXT_HIDDEN_STATE, read_json
from vflash.model.load import FLOAT32 as FLOAT32_MODULES
from vflash_ports.errors import CheckpointError
from vflash_ports.weights import TensorSpec, WeightOpener

_TEXT_LAYER = re.compile(r"(?:^|\.)language_model\.layers\.(\d+)\.")
_BLOCK = re.compile(r"^transformer_blocks\.(\d+)\.")
_CODEC_FLOAT32 = frozenset({"encoder", "quant_conv", "norm1", "norm2", "norm_out", "scale1", "scale2"})
"""Modules of the video VAE that stay in float32 whatever the pipeline's dtype."""


def weigh(weights: WeightOpener, model_dir: Path, denoiser: str, dtype: torch.dtype) -> ModelBytes:
    """Reads headers and one config; no payload. Raises `CheckpointError` for what is not there."""
    transformer = weights(model_dir / denoiser).specs()
    adaln = [spec for name, spec in transformer.items() if ".adaln_proj." in name]
    blocks = [spec for name, spec in transformer.items() if _BLOCK.match(name) and ".adaln_proj." not in name]
    auxiliary = {name: spec for name, spec in transformer.items() if not _BLOCK.match(name)}
    config = read_json(model_dir / "text_encoder" / "config.json").get("text_config", {})
    return ModelBytes(
        encoder=_encoder(weights(model_dir / "text_encoder").specs(), dtype),
        codec=weigh_codec(weights, model_dir, dtype),
        auxiliary=PartBytes(
            loaded=sum(_cast(spec, _auxiliary_dtype(name, dtype)) for name, spec in auxiliary.items()),
            largest=0,
            read=_stored(auxiliary.values()),
        ),
        projections=PartBytes(
            loaded=0, largest=max((_cast(spec, dtype) for spec in adaln), default=0), read=_stored(adaln)
        ),
        stack_read=_stored(blocks),
        encoder_hidden=_width(config, "hidden_size"),
        encoder_ffn=_width(config, "intermediate_size"),
    )


def weigh_codec(weights: WeightOpener, model_dir: Path, dtype: torch.dtype) -> PartBytes:
    """Of both VAEs, as `weigh`."""
    video, audio = (weights(model_dir / folder).specs() for folder in ("vae", "audio_vae"))
    loaded = sum(
        _cast(spec, dtype if _CODEC_FLOAT32.isdisjoint(name.split(".")) else torch.float32)
        for name, spec in video.items()
    ) + sum(_cast(spec, torch.float32) for spec in audio.values())
    return PartBytes(loaded=loaded, largest=loaded, read=_stored(video.values()) + _stored(audio.values()))


def _encoder(specs: Mapping[str, TensorSpec], dtype: torch.dtype) -> PartBytes:
    """The prefix that conditions the model, without its language head; swapped, it moves one tensor at a time."""
    kept = [spec for name, spec in specs.items() if not name.startswith("lm_head.") and _is_needed(name)]
    sizes = [_cast(spec, dtype) for spec in kept]
    return PartBytes(loaded=sum(sizes), largest=max(sizes, default=0), read=_stored(kept))


def _is_needed(name: str) -> bool:
    layer = _TEXT_LAYER.search(name)
    return layer is None or int(layer[1]) <= TEXT_HIDDEN_STATE


def _auxiliary_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if name.rsplit(".", 1)[0] in FLOAT32_MODULES else dtype


def _cast(spec: TensorSpec, dtype: torch.dtype) -> int:
    return spec.byte_count // spec.dtype.itemsize * dtype.itemsize


def _stored(specs: Iterable[TensorSpec]) -> int:
    return sum(spec.byte_count for spec in specs)


def _width(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"text_encoder/config.json: text_config.{name} must be a positive number, got {value!r}")
    return value
