"""Cutting a loaded Qwen3-VL to the part that conditions the model, and placing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vflash_ports.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration


def cut_to_prefix(model: Qwen3VLForConditionalGeneration, hidden_state_index: int) -> None:
    """Keep `hidden_state_index + 1` text layers and no language head, in place.

    One layer more than is read: the state after the last layer of a stack is the one the final norm is applied to.
    """
    text: Any = model.model.language_model
    kept = layers_kept(hidden_state_index)
    if len(text.layers) < kept:
        raise CheckpointError(
            f"the text encoder has {len(text.layers)} layers; reading hidden state {hidden_state_index} needs {kept}"
        )
    text.layers = text.layers[:kept]
    text.config.num_hidden_layers = kept
    whole: Any = model.config
    whole.text_config.num_hidden_layers = kept
    model.lm_head = nn.Identity()


def layers_kept(hidden_state_index: int) -> int:
    return hidden_state_index + 1


def check_on_cpu(model: nn.Module, loader: str) -> None:
    """Every tensor of the prefix is a real CPU tensor, else `CheckpointError` naming one that is not."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu":
            raise CheckpointError(
                f"the text encoder loader {loader} left {name} on {tensor.device}; load every tensor on the CPU"
            )


def place(model: nn.Module, *, device: torch.device, dtype: torch.dtype) -> None:
    """Move the model to `device` and cast its weights to `dtype`, module by module.

    Two things keep their own dtype: non-persistent buffers (the FP32 rotary frequencies, computed and never stored),
    and modules that hold FP8 codes, whose scales are FP32 on purpose.
    """
    for module in model.modules():
        keeps_dtype = any(_is_code(tensor) for tensor in (*_own(module._parameters), *_own(module._buffers)))
        for name, parameter in module._parameters.items():
            if parameter is not None:
                target = parameter.dtype if keeps_dtype or not parameter.is_floating_point() else dtype
                moved = parameter.detach().to(device=device, dtype=target)
                module._parameters[name] = nn.Parameter(moved, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                stored = name not in module._non_persistent_buffers_set
                casts = stored and not keeps_dtype and buffer.is_floating_point()
                module._buffers[name] = buffer.to(device=device, dtype=dtype if casts else buffer.dtype)


def _own(tensors: Any) -> list[torch.Tensor]:
    return [tensor for tensor in tensors.values() if tensor is not None]


def _is_code(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() == 1
