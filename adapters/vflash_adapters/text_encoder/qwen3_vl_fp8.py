"""A text encoder whose linear layers are stored in row-scaled FP8 and stay so in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from attrs import field, frozen
from torch import nn

from vflash_adapters.linear.row_fp8 import RowFP8Execution
from vflash_adapters.linear.row_fp8_linear import RowFP8Linear
from vflash_adapters.text_encoder.offline_loader import OfflineLoader, empty_prefix, fill
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
        folder = model_dir / "text_encoder"
        source = self.open_weights(folder)
        model = empty_prefix(folder, self.hidden_state_index)
        self._replace_linears(model, source.specs(), folder)
        fill(model, source, folder, self.hidden_state_index)
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
