"""Random weights at the container's own ports: a model folder of configs, and values drawn when they are asked for.

Values are drawn on the compute device, so opening a model says nothing about a disk. What goes into them: the spread of
each tensor keeps activations in a model's range, every tensor depends on its name alone, and the video decoder's last
projection gives the 8x8 pixels of a cell one colour, so that frames cost an encoder about what pictures do.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field, frozen

from vflash.domain.model_facts import TEXT_HIDDEN_STATE, DenoiserFacts, read_model_facts
from vflash.model.load import FLOAT32, expected_shapes
from vflash_adapters.latent_codec.load_vae import AUDIO_VAE, VIDEO_VAE, VaeKind, empty_vae
from vflash_adapters.text_encoder.offline_loader import empty_prefix, fill
from vflash_adapters.tiny_checkpoint.weights import COMPUTED, centre_and_spread
from vflash_ports.weights import TensorSpec, WeightSource

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

CELL = 8
PIXEL_PROJECTION = "decoder.proj_out.weight"
ALIGNMENT = 64
SLAB_SPARE = 1 << 20


@frozen(kw_only=True, eq=False)
class RandomWeights:
    """A `WeightSource`; each tensor is drawn on `device` and stays there. `computed` values are learnt by no model."""

    tensors: Mapping[str, TensorSpec]
    device: torch.device
    computed: Mapping[str, torch.Tensor] = field(factory=dict)

    def specs(self) -> Mapping[str, TensorSpec]:
        return self.tensors

    @contextmanager
    def open(self) -> Iterator[RandomWeights]:
        yield self

    def get_tensor(self, name: str) -> torch.Tensor:
        if name in self.computed:
            return self.computed[name]
        spec = self.tensors[name]
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(name.encode()))
        drawn = torch.empty(spec.shape, dtype=spec.dtype, device=self.device)
        drawn.normal_(*centre_and_spread(name, spec.shape), generator=generator)
        return _coarse(drawn) if name == PIXEL_PROJECTION else drawn

    def read_into(self, name: str, out: torch.Tensor) -> None:
        out.copy_(self.get_tensor(name))


@frozen(kw_only=True, eq=False)
class SlabWeights:
    """A `WeightSource` whose matrices are views into one slab of host memory, each at a place of its own: no time and
    no memory for 48 GiB of them. Vectors are drawn."""

    tensors: Mapping[str, TensorSpec]
    slab: torch.Tensor

    def specs(self) -> Mapping[str, TensorSpec]:
        return self.tensors

    @contextmanager
    def open(self) -> Iterator[SlabWeights]:
        yield self

    def get_tensor(self, name: str) -> torch.Tensor:
        spec, seed = self.tensors[name], zlib.crc32(name.encode())
        if len(spec.shape) == 1:
            drawn = torch.randn(spec.shape, generator=torch.Generator().manual_seed(seed))
            centre, spread = centre_and_spread(name, spec.shape)
            return drawn.mul_(spread).add_(centre).to(spec.dtype)
        count = torch.Size(spec.shape).numel()
        start = seed % ((self.slab.numel() - count) // ALIGNMENT) * ALIGNMENT
        return self.slab[start : start + count].view(spec.shape)

    def read_into(self, name: str, out: torch.Tensor) -> None:
        out.copy_(self.get_tensor(name))


@define(kw_only=True, eq=False)
class RandomOpener:
    """A `WeightOpener` for a model folder that holds configs alone."""

    device: torch.device
    _opened: dict[Path, WeightSource] = field(factory=dict, init=False)

    def __call__(self, path: Path) -> WeightSource:
        if path not in self._opened:
            self._opened[path] = self._open(path)
        return self._opened[path]

    def load_text_encoder(self, model_dir: Path) -> Qwen3VLForConditionalGeneration:
        """A `TextEncoderLoader`: the product's own way to fill the cut model, from here."""
        folder = model_dir / "text_encoder"
        model = empty_prefix(folder, TEXT_HIDDEN_STATE)
        fill(model, self(folder), folder, TEXT_HIDDEN_STATE)
        return model

    def _open(self, path: Path) -> WeightSource:
        kinds: dict[str, VaeKind] = {kind.folder: kind for kind in (VIDEO_VAE, AUDIO_VAE)}
        if path.name in kinds:
            state = empty_vae(kinds[path.name], path).state_dict()
            computed = {name: tensor for name, tensor in state.items() if name.endswith(COMPUTED)}
            return RandomWeights(tensors=_specs(state, torch.float32), device=self.device, computed=computed)
        if path.name == "text_encoder":
            tensors = _specs(empty_prefix(path, TEXT_HIDDEN_STATE).state_dict(), torch.bfloat16)
            return SlabWeights(tensors=tensors, slab=random_slab(tensors, self.device))
        return denoiser_weights(read_model_facts(path.parent, denoiser=path.name).denoiser, self.device)


def denoiser_weights(facts: DenoiserFacts, device: torch.device) -> RandomWeights:
    """Of the released names, shapes and dtypes."""
    tensors = {}
    for name, shape in expected_shapes(facts).items():
        dtype = torch.float32 if name.rsplit(".", 1)[0] in FLOAT32 else torch.bfloat16
        tensors[name] = _spec(name, shape, dtype)
    return RandomWeights(tensors=tensors, device=device)


def random_slab(tensors: Mapping[str, TensorSpec], device: torch.device) -> torch.Tensor:
    """bfloat16, a little longer than the largest tensor; page-locked for a CUDA device."""
    largest = max(torch.Size(spec.shape).numel() for spec in tensors.values())
    width = max(spec.shape[-1] for spec in tensors.values() if "layers." in spec.name)
    drawn = torch.empty(largest + SLAB_SPARE, dtype=torch.bfloat16, device=device)
    drawn.normal_(0.0, width**-0.5, generator=torch.Generator(device).manual_seed(0))
    slab = torch.empty(drawn.shape, dtype=drawn.dtype, pin_memory=device.type == "cuda")
    return slab.copy_(drawn)


def _coarse(weight: torch.Tensor) -> torch.Tensor:
    """[3 * 4 * 16 * 16, width], pixels of a patch row by row: one row of weights for every cell of 8x8."""
    cells = weight.view(-1, 16, 16, weight.shape[1])[:, ::CELL, ::CELL]
    return cells.repeat_interleave(CELL, 1).repeat_interleave(CELL, 2).reshape(weight.shape)


def _specs(state: Mapping[str, Any], dtype: torch.dtype) -> dict[str, TensorSpec]:
    return {name: _spec(name, tuple(tensor.shape), dtype) for name, tensor in state.items()}


def _spec(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape, byte_count=torch.Size(shape).numel() * dtype.itemsize)
