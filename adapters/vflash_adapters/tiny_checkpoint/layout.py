"""The folders and config files of the released repository, with tiny models inside."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vflash_adapters.publish import new_directory
from vflash_adapters.tiny_checkpoint.dimensions import Dimensions, Variant, dimensions_of
from vflash_adapters.tiny_checkpoint.tokenizer import write_tokenizer
from vflash_adapters.tiny_checkpoint.weights import (
    TRANSFORMER_FLOAT32,
    StoredDtype,
    cast_stored,
    random_tensors,
    save_shards,
)
from vflash_ports.errors import ContractError

_HUB_ID = "MiniMaxAI/MiniMax-H3"
_DIFFUSERS_VERSION = "0.42.1"

# Component folder -> library and class, as the released index names them.
_COMPONENTS = {
    "text_encoder": ("transformers", "Qwen3VLForConditionalGeneration"),
    "tokenizer": ("transformers", "Qwen2TokenizerFast"),
    "processor": ("transformers", "Qwen3VLProcessor"),
    "vae": ("diffusers", "AutoencoderKLMiniMaxH3"),
    "audio_vae": ("diffusers", "AutoencoderKLMiniMaxH3Audio"),
    "transformer": ("diffusers", "MiniMaxH3Transformer3DModel"),
    "transformer_ref": ("diffusers", "MiniMaxH3Transformer3DModel"),
    "scheduler": ("diffusers", "MiniMaxH3Scheduler"),
    "audio_scheduler": ("diffusers", "MiniMaxH3Scheduler"),
}
_SHIFTS = {"scheduler": 12.0, "audio_scheduler": 3.0}


def write_tiny_checkpoint(
    output: Path,
    *,
    dimensions: Dimensions | Variant = Variant.SMALL,
    dtype: StoredDtype = StoredDtype.FLOAT32,
    seed: int = 0,
) -> None:
    """Write a checkpoint of a few MB that the public pipeline loads offline; the same bytes for the same arguments.

    `output` must not exist or be empty (`ContractError`); it appears whole or not at all.
    `transformer` and `transformer_ref` hold different weights.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ContractError(f"{output} exists and is not an empty folder; name a new folder for the checkpoint")
    sizes = dimensions if isinstance(dimensions, Dimensions) else dimensions_of(dimensions)
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.exists():
        output.rmdir()
    with new_directory(output) as work:
        _write_all(work, sizes, dtype, seed)


def write_configs(output: Path, sizes: Dimensions, dtype: StoredDtype) -> None:
    """All of a checkpoint but its weights: tokenizer, processors, the config of every component, both indexes."""
    ids = write_tokenizer(output / "tokenizer", sizes.corpus, sizes.merges)
    write_tokenizer(output / "processor", sizes.corpus, sizes.merges)
    _write_processors(output / "processor", sizes)
    _write_json(output / "text_encoder" / "config.json", _text_encoder_config(sizes, ids, dtype))
    for name, config in (
        ("transformer", sizes.transformer),
        ("transformer_ref", sizes.transformer),
        ("vae", sizes.vae),
        ("audio_vae", sizes.audio_vae),
    ):
        _write_json(output / name / "config.json", _diffusers_config(name, config))
    for name, shift in _SHIFTS.items():
        _write_json(output / name / "scheduler_config.json", _diffusers_config(name, {"shift": shift}))
    for index in ("model_index.json", "modular_model_index.json"):
        _write_json(output / index, _model_index(sizes))


def _write_all(output: Path, sizes: Dimensions, dtype: StoredDtype, seed: int) -> None:
    write_configs(output, sizes, dtype)
    _write_text_encoder(output / "text_encoder", sizes, dtype, seed)
    for name in ("transformer", "transformer_ref"):
        _write_transformer(output / name, sizes, dtype, seed)
    _write_autoencoders(output, sizes, seed)


def _write_transformer(folder: Path, sizes: Dimensions, dtype: StoredDtype, seed: int) -> None:
    from diffusers import MiniMaxH3Transformer3DModel

    model: Any = MiniMaxH3Transformer3DModel(**sizes.transformer)
    tensors = random_tensors(model, label=folder.name, seed=seed)
    if dtype is StoredDtype.MIXED:
        tensors = cast_stored(tensors, float32=TRANSFORMER_FLOAT32)
    save_shards(tensors, folder, stem="diffusion_pytorch_model", shards=sizes.shards[folder.name])


def _write_autoencoders(output: Path, sizes: Dimensions, seed: int) -> None:
    # Both VAEs are released in FP32 whatever the rest is.
    from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio

    video: Any = AutoencoderKLMiniMaxH3(**sizes.vae)
    with warnings.catch_warnings():
        # The released audio VAE is stored in the weight_norm form that torch now calls old.
        warnings.filterwarnings("ignore", message=".*weight_norm", category=FutureWarning)
        audio: Any = AutoencoderKLMiniMaxH3Audio(**sizes.audio_vae)
    for name, module, shards in (("vae", video, sizes.shards["vae"]), ("audio_vae", audio, 1)):
        tensors = random_tensors(module, label=name, seed=seed)
        save_shards(tensors, output / name, stem="diffusion_pytorch_model", shards=shards)


def _write_text_encoder(folder: Path, sizes: Dimensions, dtype: StoredDtype, seed: int) -> None:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    config = json.loads((folder / "config.json").read_text())
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**config))
    tensors = random_tensors(model, label=folder.name, seed=seed)
    if dtype is StoredDtype.MIXED:
        tensors = cast_stored(tensors, float32=())
    save_shards(tensors, folder, stem="model", shards=sizes.shards[folder.name])


def _text_encoder_config(sizes: Dimensions, ids: Mapping[str, int], dtype: StoredDtype) -> dict[str, Any]:
    text = {key: value for key, value in sizes.text.items() if key != "mrope_section"}
    rope = {
        "rope_type": "default",
        "rope_theta": 5_000_000,
        "mrope_interleaved": True,
        "mrope_section": sizes.text["mrope_section"],
    }
    stored = "bfloat16" if dtype is StoredDtype.MIXED else "float32"
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": stored,
        "tie_word_embeddings": False,
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "text_config": {
            "model_type": "qwen3_vl_text",
            "dtype": stored,
            # Padded past the tokenizer, as the release is.
            "vocab_size": -(-len(ids) // 64) * 64,
            "hidden_act": "silu",
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "rope_parameters": rope,
            **text,
        },
        "vision_config": {
            "model_type": "qwen3_vl_vision",
            "in_channels": 3,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "out_hidden_size": sizes.text["hidden_size"],
            **sizes.vision,
        },
    }


def _write_processors(folder: Path, sizes: Dimensions) -> None:
    shared = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    for name, budget, kind in (
        ("preprocessor_config.json", sizes.picture, {"image_processor_type": "Qwen2VLImageProcessorFast"}),
        ("video_preprocessor_config.json", sizes.video, {"video_processor_type": "Qwen3VLVideoProcessor"}),
    ):
        size = {"shortest_edge": budget[0], "longest_edge": budget[1]}
        _write_json(folder / name, {"size": size, **shared, **kind})


def _diffusers_config(component: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"_class_name": _COMPONENTS[component][1], "_diffusers_version": _DIFFUSERS_VERSION, **config}


def _model_index(sizes: Dimensions) -> dict[str, Any]:
    index: dict[str, Any] = {
        "_blocks_class_name": "MiniMaxH3Blocks",
        "_class_name": "MiniMaxH3ModularPipeline",
        "_diffusers_version": _DIFFUSERS_VERSION,
    }
    for name, (library, class_name) in _COMPONENTS.items():
        spec = {
            "pretrained_model_name_or_path": _HUB_ID,
            "revision": None,
            "subfolder": name,
            "type_hint": [library, class_name],
            "variant": None,
        }
        index[name] = [library, class_name, spec]
    return {**index, **sizes.canvas}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
