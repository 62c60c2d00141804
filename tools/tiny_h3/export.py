"""A run's states to a checkpoint in the released layout: what the public pipeline and this project both load.

PYTHONPATH=src:ports:adapters:tools python -m tiny_h3 export --folder RUN --output tiny-h3
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors.torch import load_file

from tiny_h3.model import TEXT
from tiny_h3.sizes import ACTIVE_TEXT_LAYERS
from tiny_h3.stage import State, load_state
from tiny_h3.text import MERGES, corpus
from vflash_adapters.tiny_checkpoint import Dimensions, StoredDtype, write_tiny_checkpoint
from vflash_adapters.tiny_checkpoint.weights import TRANSFORMER_FLOAT32, cast_stored, save_shards

CANVAS = {"canvas_short_edge": 96, "canvas_max_pixels": 96 * 128, "reference_image_short_edge": 64}
_LAYERS = "model.language_model.layers."
_SILENT = "_proj.weight"
"""Zero in a layer that passes its input on; its two output projections would do, but zeros also pack to nothing."""
_DIFFUSERS_FILE, _TRANSFORMERS_FILE = "diffusion_pytorch_model", "model"


def export_checkpoint(folder: Path, output: Path, sizes: Dimensions, *, float32: bool = False) -> None:
    """`output` must not exist. BF16 denoisers and text encoder with the released float32 tensors, float32 VAEs;
    with `float32` everything, so that tests can compare exactly."""
    states = {name: load_state(folder / f"{name}.safetensors") for name in _STATES}
    dtype = StoredDtype.FLOAT32 if float32 else StoredDtype.MIXED
    write_tiny_checkpoint(output, dimensions=_measured(sizes, states), dtype=dtype)
    for name in ("vae", "audio_vae"):
        _replace(output / name, states[name][0], _DIFFUSERS_FILE, dtype=StoredDtype.FLOAT32)
    for name in ("transformer", "transformer_ref"):
        own = {key: value for key, value in states[name][0].items() if not key.startswith(TEXT)}
        _replace(output / name, own, _DIFFUSERS_FILE, dtype=dtype, keep=TRANSFORMER_FLOAT32)
    trained = {k.removeprefix(TEXT): v for k, v in states["transformer"][0].items() if k.startswith(TEXT)}
    text = text_encoder_tensors(load_file(output / "text_encoder" / f"{_TRANSFORMERS_FILE}.safetensors"), trained)
    _replace(output / "text_encoder", text, _TRANSFORMERS_FILE, dtype=dtype)
    for name, file in (("turbo", "turbo-lora.safetensors"), ("veda", "veda-predictor.safetensors")):
        if (folder / f"{name}.safetensors").exists():
            shutil.copyfile(folder / f"{name}.safetensors", output / file)


_STATES = ("vae", "audio_vae", "transformer", "transformer_ref")


def text_encoder_tensors(random: Mapping[str, torch.Tensor], trained: State) -> State:
    """All of Qwen3-VL's tensors: the trained layers first, then layers that pass on, a tower that only says
    "a picture", and an unused head.

    `random` is a freshly written encoder of the same sizes: it gives every name and shape.
    """
    tensors = {name: value.float() for name, value in random.items()}
    for name, value in trained.items():
        if name != "picture":
            tensors[f"model.language_model.{name}"] = value
    for name in filter(_is_silent, list(tensors)):
        tensors[name] = torch.zeros_like(tensors[name])
    tensors["model.visual.merger.linear_fc2.bias"] = trained["picture"]
    return tensors


def _is_silent(name: str) -> bool:
    """Projections of layers that pass on, outputs of the vision tower, and the head that nothing reads."""
    if name.startswith(_LAYERS):
        return name.endswith(_SILENT) and _layer(name) >= ACTIVE_TEXT_LAYERS
    merger = name.startswith(("model.visual.merger.", "model.visual.deepstack_merger_list."))
    return name == "lm_head.weight" or (merger and ".linear_fc2." in name)


def _measured(sizes: Dimensions, states: Mapping[str, tuple[State, dict[str, Any]]]) -> Dimensions:
    """The sizes with the latent statistics that the VAEs' training measured, our canvas and our tokenizer."""
    changed: dict[str, Any] = {}
    for name in ("vae", "audio_vae"):
        facts = states[name][1]
        statistics = {key: facts[key] for key in ("latents_mean", "latents_std")}
        changed[name] = {**getattr(sizes, name), **statistics}
    return attrs.evolve(sizes, **changed, canvas=CANVAS, corpus=corpus(), merges=MERGES)


def _replace(
    folder: Path, tensors: Mapping[str, torch.Tensor], stem: str, *, dtype: StoredDtype, keep: tuple[str, ...] = ()
) -> None:
    """Exactly the names and shapes that are there already."""
    file = folder / f"{stem}.safetensors"
    there = {name: tuple(value.shape) for name, value in load_file(file).items()}
    given = {name: tuple(value.shape) for name, value in tensors.items()}
    if there != given:
        differing = sorted(set(there.items()) ^ set(given.items()))[:4]
        raise ValueError(f"{folder.name}: the state does not fit the layout, e.g. {differing}")
    stored = cast_stored(tensors, float32=keep) if dtype is StoredDtype.MIXED else dict(tensors)
    save_shards(stored, folder, stem=stem, shards=1)


def _layer(name: str) -> int:
    return int(name.removeprefix(_LAYERS).split(".")[0])


def size_of(output: Path) -> dict[str, int]:
    """Bytes by component."""
    parts = {p.name: sum(f.stat().st_size for f in p.rglob("*") if f.is_file()) for p in output.iterdir() if p.is_dir()}
    return dict(sorted(parts.items()))
