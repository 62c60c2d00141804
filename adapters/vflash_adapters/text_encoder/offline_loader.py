"""The default text encoder loader: the checkpoint's own folder, as stored, on the CPU, without a network."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import nn

from vflash_adapters.strict_json import parse_object
from vflash_adapters.text_encoder.prefix import layers_kept
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import CheckpointError
from vflash_ports.weights import WeightOpener, WeightSource

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

_LAYER = re.compile(r"(?:^|\.)language_model\.layers\.(\d+)\.")


@frozen(kw_only=True)
class OfflineLoader:
    """Reads `text_encoder/` down to the layers that hidden state `hidden_state_index` needs; later ones stay on disk,
    and so does the language head.

    Safetensors only; the stored dtype is kept. With the mapped source nothing is copied until it is used. A missing,
    misshapen or unknown tensor is a `CheckpointError`.
    """

    hidden_state_index: int
    open_weights: WeightOpener = MmapWeights

    def __call__(self, model_dir: Path) -> Qwen3VLForConditionalGeneration:
        folder = model_dir / "text_encoder"
        _check_files(folder)
        model = empty_prefix(folder, self.hidden_state_index)
        fill(model, self.open_weights(folder), folder, self.hidden_state_index)
        return model


def empty_prefix(folder: Path, hidden_state_index: int) -> Qwen3VLForConditionalGeneration:
    """The cut model without its language head: weights on the meta device, computed buffers real."""
    from transformers import Qwen3VLForConditionalGeneration

    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration._from_config(
            prefix_config(folder, hidden_state_index), attn_implementation="sdpa"
        )
    model.lm_head = nn.Identity()
    _compute_rotary_buffers(model)
    return model


def fill(model: nn.Module, source: WeightSource, folder: Path, hidden_state_index: int) -> None:
    """Every tensor that `model` has from the file, as it is stored; no other is read."""
    specs, wanted = source.specs(), model.state_dict()
    with source.open() as reader:
        state = {name: reader.get_tensor(name) for name in specs if name in wanted}
    report = {
        "missing_keys": wanted.keys() - state.keys(),
        "mismatched_keys": [
            (name, tuple(tensor.shape), tuple(wanted[name].shape))
            for name, tensor in state.items()
            if tensor.shape != wanted[name].shape
        ],
        "unexpected_keys": specs.keys() - wanted.keys() - {"lm_head.weight"},
    }
    check_loaded(folder, report, hidden_state_index)
    model.load_state_dict(state, assign=True)


def prefix_config(folder: Path, hidden_state_index: int) -> Any:
    """The stored configuration, cut to the text layers that the hidden state needs."""
    from transformers import Qwen3VLConfig

    config: Any = Qwen3VLConfig.from_pretrained(folder, local_files_only=True)
    kept, stored = layers_kept(hidden_state_index), config.text_config.num_hidden_layers
    if stored < kept:
        raise CheckpointError(
            f"{folder} has {stored} text layers; reading hidden state {hidden_state_index} needs {kept}"
        )
    config.text_config.num_hidden_layers = kept
    return config


def check_loaded(folder: Path, report: Mapping[str, Any], hidden_state_index: int) -> None:
    """`CheckpointError` for a missing, misshapen or unknown tensor; layers beyond the prefix may be there."""
    for key in sorted(report["missing_keys"]):
        raise CheckpointError(f"{folder} lacks the tensor {key}; download the text encoder again")
    for key, stored, wanted in sorted(report["mismatched_keys"]):
        raise CheckpointError(f"{folder} stores {key} as {list(stored)}, config.json asks for {list(wanted)}")
    for key in sorted(report["unexpected_keys"]):
        layer = _LAYER.search(key)
        if layer is None or int(layer[1]) < layers_kept(hidden_state_index):
            raise CheckpointError(f"{folder} holds the tensor {key}, which is none of Qwen3-VL's")


def _check_files(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    needed = {folder / "config.json"}
    if index.is_file():
        weight_map = parse_object(index.read_bytes(), str(index)).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{index} has no weight_map; download the text encoder again")
        needed |= {folder / str(name) for name in weight_map.values()}
    else:
        needed.add(folder / "model.safetensors")
    missing = sorted(path.name for path in needed if not path.is_file())
    if missing:
        raise CheckpointError(f"{folder} lacks {', '.join(missing)}; download the text encoder again")


def _compute_rotary_buffers(model: nn.Module) -> None:
    """The rotary frequencies are computed in float32 and never stored, so a model made on meta lacks them."""
    for name, module in list(model.named_modules()):
        if module._non_persistent_buffers_set:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, _made_anew(module))


def _made_anew(module: Any) -> nn.Module:
    kind: Any = type(module)
    if "config" in inspect.signature(kind.__init__).parameters:
        made: nn.Module = kind(config=module.config)
    else:  # older transformers: the vision rotary takes its width, two channels a frequency
        made = kind(2 * module.inv_freq.shape[0])
    return made
