"""The default text encoder loader: the checkpoint's own folder, as stored, on the CPU, without a network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from vflash_adapters.strict_json import parse_object
from vflash_adapters.text_encoder.prefix import layers_kept
from vflash_ports.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

_LAYER = re.compile(r"(?:^|\.)language_model\.layers\.(\d+)\.")


@frozen(kw_only=True)
class OfflineLoader:
    """Reads `text_encoder/` down to the layers that hidden state `hidden_state_index` needs; later ones stay on disk.

    Safetensors only; the stored dtype is kept. A missing, misshapen or unknown tensor is a `CheckpointError`.
    """

    hidden_state_index: int

    def __call__(self, model_dir: Path) -> Qwen3VLForConditionalGeneration:
        from transformers import Qwen3VLForConditionalGeneration

        folder = model_dir / "text_encoder"
        _check_files(folder)
        with _quiet_transformers():
            loaded: Any = Qwen3VLForConditionalGeneration.from_pretrained(
                folder,
                config=prefix_config(folder, self.hidden_state_index),
                dtype="auto",
                attn_implementation="sdpa",
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are reported by name below
                output_loading_info=True,
            )
        model: Qwen3VLForConditionalGeneration = loaded[0]
        check_loaded(folder, loaded[1], self.hidden_state_index)
        return model


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


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Without its progress bar and its report of the layers left on disk, which are checked here instead."""
    from transformers.utils import logging

    level, had_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bar:
            logging.enable_progress_bar()
