"""Qwen3-VL as the text encoder: one unnormalised hidden state of the exact prefix that produces it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field, frozen, validators

from vflash_adapters.float32_convolutions import exact_convolutions
from vflash_adapters.residency.host_masters import HostMasters
from vflash_adapters.text_encoder.offline_loader import OfflineLoader
from vflash_adapters.text_encoder.prefix import check_on_cpu, cut_to_prefix, place
from vflash_adapters.text_encoder.presentation import EncoderInputs, Presenter
from vflash_adapters.text_encoder.qwen3_vl_fp8 import stored_loader
from vflash_ports.errors import CheckpointError, ClosedError, NonFiniteError, VflashError
from vflash_ports.text_encoder import Part, TextConditioning, TextEncoderLoader

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration


@frozen(kw_only=True)
class Qwen3VLProvider:
    """Opens the encoder that conditions on hidden state `hidden_state_index` (50 in the release).

    `loader` is trusted code that returns the whole model or any prefix of at least `hidden_state_index + 1` layers on
    the CPU; by default `OfflineLoader`, or `Fp8TextEncoderLoader` where the folder stores FP8. Its own exceptions
    arrive as `CheckpointError`, naming it.

    With `streamed` the weights wait in host memory and pass through the device one layer at a time; `owned` says that
    they do so in memory of this process, for an encoder that will work again, and not in the mapped file.
    """

    hidden_state_index: int = field(validator=validators.ge(1))
    loader: TextEncoderLoader | None = None
    streamed: bool = False
    owned: bool = True

    @contextmanager
    def open(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> Iterator[Qwen3VLTextEncoder]:
        encoder = self._load(model_dir, device, dtype)
        try:
            yield encoder
        finally:
            encoder.close()

    def _load(self, model_dir: Path, device: torch.device, dtype: torch.dtype) -> Qwen3VLTextEncoder:
        presenter = Presenter.read(model_dir)
        model = self._call_loader(model_dir)
        cut_to_prefix(model, self.hidden_state_index)
        check_on_cpu(model, self._loader_name())
        _check_pad_tokens(model, presenter)
        # Exact attention whatever a loader chose; the reference runs the same kernel.
        model.set_attn_implementation("sdpa")
        model.requires_grad_(requires_grad=False).eval()
        masters = None
        if self.streamed:
            place(model, device=torch.device("cpu"), dtype=dtype)
            masters = HostMasters(model, device, owned=self.owned)
            masters.stream()
        else:
            place(model, device=device, dtype=dtype)
        return Qwen3VLTextEncoder(
            model=model,
            presenter=presenter,
            hidden_state_index=self.hidden_state_index,
            device=device,
            dtype=dtype,
            masters=masters,
        )

    def _call_loader(self, model_dir: Path) -> Qwen3VLForConditionalGeneration:
        from transformers import Qwen3VLForConditionalGeneration

        loader = self.loader or stored_loader(model_dir, self.hidden_state_index)
        try:
            model = loader(model_dir)
        except VflashError:
            raise
        except Exception as error:
            raise CheckpointError(f"the text encoder loader {self._loader_name()} failed: {error}") from error
        if not isinstance(model, Qwen3VLForConditionalGeneration):
            raise CheckpointError(
                f"the text encoder loader {self._loader_name()} returned {type(model).__name__}; "
                "it must return a transformers Qwen3VLForConditionalGeneration"
            )
        return model

    def _loader_name(self) -> str:
        loader = self.loader or OfflineLoader
        return getattr(loader, "__qualname__", type(loader).__qualname__)


@define(kw_only=True, eq=False)
class Qwen3VLTextEncoder:
    """Valid inside the provider's scope; afterwards it holds nothing and raises `ClosedError`."""

    _model: Qwen3VLForConditionalGeneration | None
    _presenter: Presenter
    _hidden_state_index: int
    _device: torch.device
    _dtype: torch.dtype
    _masters: HostMasters | None = None

    def encode(self, presentation: Sequence[Part]) -> TextConditioning:
        if self._model is None:
            raise ClosedError("the text encoder was released when its scope ended; open it again")
        inputs = self._presenter.present(presentation)
        embeds = self._hidden_state(self._model, inputs)
        if not torch.isfinite(embeds).all():
            raise NonFiniteError(f"the text encoder's hidden state {self._hidden_state_index} holds NaN or infinity")
        return TextConditioning(embeds=embeds, tags=inputs.tags)

    def close(self) -> None:
        """Release the weights; idempotent."""
        self._model = None
        if self._masters is not None:
            self._masters.close()
            self._masters = None
        gc.collect()  # modules refer to each other in cycles
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _hidden_state(self, model: Qwen3VLForConditionalGeneration, inputs: EncoderInputs) -> torch.Tensor:
        found: list[torch.Tensor] = []
        core: Any = model.model
        # A hook on one layer, because asking for all hidden states would keep one a layer alive.
        layer = core.language_model.layers[self._hidden_state_index - 1]
        hook = layer.register_forward_hook(lambda _module, _args, output: found.append(output))
        try:
            with torch.no_grad(), exact_convolutions(self._dtype, self._device):
                core(**self._arguments(inputs), use_cache=False)
        finally:
            hook.remove()
        (state,) = found
        return state[0]

    def _arguments(self, inputs: EncoderInputs) -> dict[str, torch.Tensor]:
        ids = inputs.ids[None].to(self._device)
        vision = {
            name: tensor.to(self._device, self._dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in inputs.vision.items()
        }
        types = inputs.types[None].to(self._device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": types, **vision}


def _check_pad_tokens(model: Qwen3VLForConditionalGeneration, presenter: Presenter) -> None:
    config, tokens = model.config, presenter.tokens
    for name, configured, known in (
        ("<|image_pad|>", config.image_token_id, tokens.image_pad),
        ("<|video_pad|>", config.video_token_id, tokens.video_pad),
    ):
        if configured != known:
            raise CheckpointError(
                f"the tokenizer gives {name} the id {known}, text_encoder/config.json says {configured}: "
                "they come from different checkpoints"
            )
