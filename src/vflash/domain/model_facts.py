"""What a checkpoint says of itself: every dimension comes from its config files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from vflash_ports.errors import CheckpointError

MAX_CONFIG_BYTES = 4 << 20
TEXT_HIDDEN_STATE = 50
"""The unnormalised hidden state of Qwen3-VL that conditions the model; no config carries it."""


@frozen(kw_only=True)
class DenoiserFacts:
    """`transformer/config.json`, by its own field names; defaults are the released model's."""

    num_attention_heads: int = 56
    attention_head_dim: int = 128
    hidden_size: int = 5376
    num_layers: int = 50
    num_refiner_layers: int = 2
    ffn_dim: int = 14336
    in_channels: int = 24
    audio_in_channels: int = 32
    patch_size: tuple[int, int, int] = field(default=(1, 2, 2), converter=tuple)
    text_dim: int = 5120
    freq_dim: int = 256
    time_embed_hidden_dim: int = 5376
    time_embed_dim: int = 2688
    rope_freq_dim: int = 16
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    qk_norm_eps: float = 1e-5
    final_norm_eps: float = 1e-5

    @property
    def inner_dim(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @property
    def video_row_dim(self) -> int:
        return self.in_channels * math.prod(self.patch_size)

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            numbers = value if isinstance(value, tuple) else (value,)
            if not all(isinstance(n, int | float) and not isinstance(n, bool) and n > 0 for n in numbers):
                raise CheckpointError(f"transformer config: {name} must be positive, got {value!r}")
        if self.patch_size[0] != 1:
            raise CheckpointError(f"transformer config: patch_size must start with 1, got {self.patch_size}")
        if 6 * self.rope_freq_dim > self.attention_head_dim:
            raise CheckpointError(
                f"transformer config: 6 * rope_freq_dim ({6 * self.rope_freq_dim}) is larger than "
                f"attention_head_dim ({self.attention_head_dim})"
            )


@frozen(kw_only=True)
class CodecFacts:
    """From `vae/config.json` and `audio_vae/config.json`."""

    latent_channels: int
    spatial_ratio: int
    clip_frames: int
    clip_latents: int
    audio_latent_channels: int
    sample_rate_hz: int
    hop: int


@frozen(kw_only=True)
class GeometryFacts:
    """The canvas the checkpoint was trained for; from the model index where it carries them."""

    canvas_short_edge: int = 768
    canvas_max_pixels: int = 768 * 1344
    reference_image_short_edge: int = 2048


@frozen(kw_only=True)
class ModelFacts:
    denoiser: DenoiserFacts
    codec: CodecFacts
    geometry: GeometryFacts
    video_shift: float
    audio_shift: float

    @property
    def canvas_multiple(self) -> int:
        """What width and height must be a multiple of: the VAE's ratio times the patch."""
        return self.codec.spatial_ratio * self.denoiser.patch_size[2]


def read_model_facts(model_dir: Path, *, denoiser: str = "transformer") -> ModelFacts:
    """Read the configs of a checkpoint folder in the diffusers layout; no weights. Raises `CheckpointError`."""
    if not model_dir.is_dir():
        raise CheckpointError(f"model folder {model_dir} does not exist; give the folder that holds model_index.json")
    return ModelFacts(
        denoiser=_denoiser(read_json(model_dir / denoiser / "config.json")),
        codec=_codec(read_json(model_dir / "vae" / "config.json"), read_json(model_dir / "audio_vae" / "config.json")),
        geometry=_geometry(model_dir),
        video_shift=_shift(model_dir / "scheduler" / "scheduler_config.json"),
        audio_shift=_shift(model_dir / "audio_scheduler" / "scheduler_config.json"),
    )


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file of bounded size."""
    try:
        size = file.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise CheckpointError(f"{file} has {size} bytes; a config has at most {MAX_CONFIG_BYTES}")
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing; the checkpoint download is not complete") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} must hold a JSON object")
    return value


def _denoiser(config: Mapping[str, Any]) -> DenoiserFacts:
    known = {item.name for item in attrs.fields(DenoiserFacts)}
    values = {name: value for name, value in config.items() if not name.startswith("_")}
    unknown = sorted(set(values) - known)
    if unknown:
        raise CheckpointError(f"transformer config has fields this version does not know: {', '.join(unknown)}")
    return DenoiserFacts(**values)


def _codec(video: Mapping[str, Any], audio: Mapping[str, Any]) -> CodecFacts:
    try:
        temporal = math.prod(video.get("temporal_downsample_factors", (1, 2, 2, 1, 1, 1)))
        clip_frames = int(video.get("clip_length", 17))
        facts = CodecFacts(
            latent_channels=int(video.get("latent_channels", 24)),
            spatial_ratio=math.prod(video.get("spatial_downsample_factors", (2, 2, 2, 2, 1, 1))),
            clip_frames=clip_frames,
            clip_latents=math.ceil(clip_frames / temporal),
            audio_latent_channels=int(audio.get("latent_channels", 32)),
            sample_rate_hz=int(audio.get("sampling_rate", 32000)),
            hop=math.prod(audio.get("encoder_rates", (2, 4, 4, 5, 5))),
        )
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(f"vae or audio_vae config is not readable: {error}") from error
    if facts.sample_rate_hz != 40 * facts.hop:
        raise CheckpointError(
            f"audio_vae config: sampling_rate {facts.sample_rate_hz} must be 40 latents a second times hop {facts.hop}"
        )
    return facts


def _geometry(model_dir: Path) -> GeometryFacts:
    index = read_json(model_dir / "model_index.json")
    modular = model_dir / "modular_model_index.json"
    if modular.exists():
        index = {**index, **read_json(modular)}
    values = {}
    for item in attrs.fields(GeometryFacts):
        value = index.get(item.name, item.default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise CheckpointError(f"{model_dir}: {item.name} must be a positive whole number, got {value!r}")
        values[item.name] = value
    return GeometryFacts(**values)


def _shift(file: Path) -> float:
    value = read_json(file).get("shift", 12.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise CheckpointError(f"{file}: shift must be a positive number, got {value!r}")
    return float(value)
