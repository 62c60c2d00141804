"""What a checkpoint says of itself: every dimension comes from its config files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from vflash.domain.duration import AUDIO_LATENTS_PER_SECOND, LEAD_LATENTS
from vflash.domain.schedule import VIDEO_SHIFT
from vflash_ports.errors import CheckpointError

MAX_CONFIG_BYTES = 4 << 20
TEXT_HIDDEN_STATE = 50
"""The unnormalised hidden state of Qwen3-VL that conditions the model; no config carries it."""
ORIGINAL_NAMES = {
    "token_refiner_num_layers": "num_refiner_layers",
    "ffn_hidden_size": "ffn_dim",
    "latents_dim": "in_channels",
    "audio_latents_dim": "audio_in_channels",
    "timestep_input_dim": "freq_dim",
    "time_embed_hidden_size": "time_embed_hidden_dim",
    "rope_inv_freq_len": "rope_freq_dim",
}
"""What the original release's `transformer/config.json` calls the same sizes."""
ORIGINAL_DERIVED = frozenset({"adaln_out_features", "final_adaln_out_features"})
"""Original fields that follow from the others; the tensors' shapes are held to the same products."""


def _whole(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise CheckpointError(f"{what} must be a positive whole number, got {value!r}")
    return value


def _positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise CheckpointError(f"{what} must be a positive number, got {value!r}")
    return float(value)


def _wholes(what: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise CheckpointError(f"{what} must be a list of positive whole numbers, got {value!r}")
    return tuple(_whole(what, item) for item in value)


def _patch(value: Any) -> tuple[int, int, int]:
    match _wholes("transformer config: patch_size", value):
        case (1, height, width):
            return 1, height, width
    raise CheckpointError(f"transformer config: patch_size must be [1, height, width], got {value!r}")


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
    patch_size: tuple[int, int, int] = field(default=(1, 2, 2), converter=_patch)
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
        for item in attrs.fields(DenoiserFacts):
            what, value = f"transformer config: {item.name}", getattr(self, item.name)
            if isinstance(item.default, float):
                _positive(what, value)
            elif item.name != "patch_size":
                _whole(what, value)
        if 6 * self.rope_freq_dim > self.attention_head_dim:
            raise CheckpointError(
                f"transformer config: 6 * rope_freq_dim ({6 * self.rope_freq_dim}) is larger than "
                f"attention_head_dim ({self.attention_head_dim})"
            )


@frozen(kw_only=True)
class CodecFacts:
    """From `vae/config.json` and `audio_vae/config.json`; `decoder_*` are the widths of the video decoder."""

    latent_channels: int
    spatial_ratio: int
    clip_frames: int
    clip_latents: int
    audio_latent_channels: int
    sample_rate_hz: int
    hop: int
    decoder_hidden: int = 2048
    decoder_ffn: int = 8192
    decoder_layers: int = 36
    encoder_width: int = 128


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

    def __attrs_post_init__(self) -> None:
        for what, rows, latents in (
            ("transformer in_channels", self.denoiser.in_channels, self.codec.latent_channels),
            ("transformer audio_in_channels", self.denoiser.audio_in_channels, self.codec.audio_latent_channels),
        ):
            if rows != latents:
                raise CheckpointError(f"{what} is {rows}, but its VAE's latent_channels is {latents}; they must agree")

    @property
    def canvas_multiple(self) -> int:
        """What width and height must be a multiple of: the VAE's ratio times the patch."""
        return self.codec.spatial_ratio * self.denoiser.patch_size[2]


def require_model_folder(model_dir: Path) -> None:
    if not model_dir.is_dir():
        fault = "is not a folder" if model_dir.exists() else "does not exist"
        raise CheckpointError(f"model folder {model_dir} {fault}; give the folder that holds model_index.json")


def read_model_facts(model_dir: Path, *, denoiser: str = "transformer") -> ModelFacts:
    """Read the configs of a checkpoint folder in the diffusers layout; no weights. Raises `CheckpointError`."""
    require_model_folder(model_dir)
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
        with file.open("rb") as stream:
            body = stream.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing; the checkpoint download is not complete") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    if len(body) > MAX_CONFIG_BYTES:
        raise CheckpointError(f"{file} is larger than {MAX_CONFIG_BYTES} bytes, which no config is")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} must hold a JSON object, not {type(value).__name__}")
    return value


def _denoiser(config: Mapping[str, Any]) -> DenoiserFacts:
    known = {item.name for item in attrs.fields(DenoiserFacts)}
    values: dict[str, Any] = {}
    for name, value in config.items():
        if name.startswith("_") or name in ORIGINAL_DERIVED:
            continue
        ours = ORIGINAL_NAMES.get(name, name)
        if ours in values:
            raise CheckpointError(f"transformer config gives {ours} twice, once by its original name; keep one")
        values[ours] = value
    unknown = sorted(set(values) - known)
    if unknown:
        raise CheckpointError(f"transformer config has fields this version does not know: {', '.join(unknown)}")
    return DenoiserFacts(**values)


def _codec(video: Mapping[str, Any], audio: Mapping[str, Any]) -> CodecFacts:
    def sizes(name: str, default: tuple[int, ...]) -> int:
        return math.prod(_wholes(f"vae config: {name}", video.get(name, default)))

    def video_whole(name: str, default: int) -> int:
        return _whole(f"vae config: {name}", video.get(name, default))

    hidden = video_whole("decoder_num_attention_heads", 32) * video_whole("decoder_attention_head_dim", 64)
    clip_frames = _whole("vae config: clip_length", video.get("clip_length", 17))
    facts = CodecFacts(
        latent_channels=_whole("vae config: latent_channels", video.get("latent_channels", 24)),
        spatial_ratio=sizes("spatial_downsample_factors", (2, 2, 2, 2, 1, 1)),
        clip_frames=clip_frames,
        clip_latents=math.ceil(clip_frames / sizes("temporal_downsample_factors", (1, 2, 2, 1, 1, 1))),
        audio_latent_channels=_whole("audio_vae config: latent_channels", audio.get("latent_channels", 32)),
        sample_rate_hz=_whole("audio_vae config: sampling_rate", audio.get("sampling_rate", 32000)),
        hop=math.prod(_wholes("audio_vae config: encoder_rates", audio.get("encoder_rates", (2, 4, 4, 5, 5)))),
        decoder_hidden=hidden,
        decoder_ffn=hidden * video_whole("decoder_ffn_mult", 4),
        decoder_layers=video_whole("decoder_num_layers", 36),
        encoder_width=_wholes("vae config: block_out_channels", video.get("block_out_channels", (128,)))[0],
    )
    if facts.sample_rate_hz != AUDIO_LATENTS_PER_SECOND * facts.hop:
        raise CheckpointError(
            f"audio_vae config: sampling_rate {facts.sample_rate_hz} must be {AUDIO_LATENTS_PER_SECOND} latents a "
            f"second times hop {facts.hop}"
        )
    # A clip's own five latents less the dropped ones are the two that lead in: 17n + 5 frames are 5n + 2 latents.
    if video.get("token_drop", 3) != facts.clip_latents - LEAD_LATENTS:
        raise CheckpointError(
            f"vae config: token_drop must be {facts.clip_latents - LEAD_LATENTS}, got {video['token_drop']!r}"
        )
    return facts


def _geometry(model_dir: Path) -> GeometryFacts:
    index = read_json(model_dir / "model_index.json")
    modular = model_dir / "modular_model_index.json"
    if modular.exists():
        index = {**index, **read_json(modular)}
    values = {}
    for item in attrs.fields(GeometryFacts):
        values[item.name] = _whole(f"{model_dir}: {item.name}", index.get(item.name, item.default))
    return GeometryFacts(**values)


def _shift(file: Path) -> float:
    return _positive(f"{file}: shift", read_json(file).get("shift", VIDEO_SHIFT))
