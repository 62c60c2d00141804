"""A denoiser and its text encoder as training holds them: from a state file, or fresh."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from tiny_h3.denoiser import Denoiser, new_parameters
from tiny_h3.stage import compute_dtype, load_state
from tiny_h3.text import Presenter
from tiny_h3.text_encoder import TextEncoder
from vflash.domain.model_facts import DenoiserFacts
from vflash_adapters.tiny_checkpoint import Dimensions

TEXT = "text_encoder."
"""Prefix of the text encoder's tensors in a state file."""


@frozen(kw_only=True, eq=False)
class Model:
    """Everything trainable of one denoiser, and how to run it."""

    facts: DenoiserFacts
    parameters: dict[str, torch.nn.Parameter]
    encoder: TextEncoder
    denoiser: Denoiser

    def everything(self) -> dict[str, torch.nn.Parameter]:
        text = {TEXT + name: value for name, value in self.encoder.named_parameters()}
        return {**self.parameters, **text}


def open_model(
    sizes: Dimensions, presenter: Presenter, state: Path | None, device: torch.device, *, seed: int = 0, compiled: bool
) -> tuple[Model, dict[str, Any]]:
    """From a state file, or fresh; and the facts stored there. Seeds torch's own generator with `seed`.

    `ValueError` where the state is of other dimensions."""
    torch.manual_seed(seed)
    facts = DenoiserFacts(**sizes.transformer)
    encoder = TextEncoder(sizes.text, padded_vocabulary(presenter), presenter.image_pad)
    values = new_parameters(sizes.transformer, torch.Generator().manual_seed(seed))
    stored: dict[str, Any] = {}
    if state is not None:
        tensors, stored = load_state(state)
        _require_fit(values, tensors, state)
        with torch.no_grad():
            for name, value in values.items():
                value.copy_(tensors[name])
        encoder.load_state_dict({k.removeprefix(TEXT): v for k, v in tensors.items() if k.startswith(TEXT)})
    parameters = {name: torch.nn.Parameter(value.detach().to(device)) for name, value in values.items()}
    denoiser = Denoiser(facts, compute_dtype(device), compiled=compiled)
    return Model(facts=facts, parameters=parameters, encoder=encoder.to(device), denoiser=denoiser), stored


def _require_fit(wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], state: Path) -> None:
    for name, value in wanted.items():
        shape = list(found[name].shape) if name in found else None
        if shape != list(value.shape):
            raise ValueError(
                f"{state}: {name} is {shape or 'missing'}, and {list(value.shape)} in a model of the asked dimensions: "
                "go on with the folder's own, or in another folder"
            )


def padded_vocabulary(presenter: Presenter) -> int:
    """As the checkpoint's config pads it."""
    return -(-presenter.tokenizer.get_vocab_size() // 64) * 64
