"""A text encoder whose linear layers are stored in row-scaled FP8 and stay so in memory."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import field, frozen
from torch import nn

from vflash_adapters.linear.row_fp8 import RowFP8Execution
from vflash_adapters.linear.row_fp8_linear import RowFP8Linear
from vflash_adapters.text_encoder.offline_loader import OfflineLoader, check_loaded, prefix_config
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import CheckpointError
from vflash_ports.text_encoder import TextEncoderLoader
from vflash_ports.weights import TensorSpec, WeightOpener

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

CODES = torch.float8_e4m3fn


@frozen(kw_only=True)
class Fp8TextEncoderLoader:
    """A `TextEncoderLoader` for folders that `vflash quantize` wrote.

    Every `nn.Linear` with codes in the file becomes a `RowFP8Linear` run by `execution`; nothing is restored at load,
    and no class of transformers is touched.
    """

    hidden_state_index: int
    execution: RowFP8Execution = field(factory=lambda: RowFP8Execution("weight-only"))
    open_weights: WeightOpener = MmapWeights

    def __call__(self, model_dir: Path) -> Qwen3VLForConditionalGeneration:
        from transformers import Qwen3VLForConditionalGeneration

        folder = model_dir / "text_encoder"
        source = self.open_weights(folder)
        specs = source.specs()
        with torch.device("meta"):
            model = Qwen3VLForConditionalGeneration(prefix_config(folder, self.hidden_state_index))
        model.lm_head = nn.Identity()
        _compute_rotary_buffers(model)
        self._replace_linears(model, specs, folder)
        wanted = model.state_dict()
        with source.open() as reader:
            state = {name: reader.get_tensor(name) for name in specs if name in wanted}
        mismatched = [
            (name, tuple(tensor.shape), tuple(wanted[name].shape))
            for name, tensor in state.items()
            if tensor.shape != wanted[name].shape
        ]
        report = {
            "missing_keys": wanted.keys() - state.keys(),
            "mismatched_keys": mismatched,
            "unexpected_keys": specs.keys() - wanted.keys() - {"lm_head.weight"},
        }
        check_loaded(folder, report, self.hidden_state_index)
        model.load_state_dict(state, assign=True)
        return model

    def _replace_linears(self, model: nn.Module, specs: Mapping[str, TensorSpec], folder: Path) -> None:
        for name, module in list(model.named_modules()):
            spec = specs.get(f"{name}.weight")
            if spec is None or spec.dtype != CODES:
                continue
            if not isinstance(module, nn.Linear):
                raise CheckpointError(f"{folder}: {name}.weight is stored in FP8, but {name} is no linear layer")
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, RowFP8Linear(module, self.execution))


def stored_loader(model_dir: Path, hidden_state_index: int) -> TextEncoderLoader:
    """The loader for what `model_dir` stores; only headers are read."""
    try:
        specs = MmapWeights(model_dir / "text_encoder").specs()
    except CheckpointError:
        return OfflineLoader(hidden_state_index=hidden_state_index)  # it says in its own words what is wrong
    if any(spec.dtype == CODES for spec in specs.values()):
        return Fp8TextEncoderLoader(hidden_state_index=hidden_state_index)
    return OfflineLoader(hidden_state_index=hidden_state_index)


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
