"""The encoder that streams from host memory: the same bits as one that stays, and nothing left on the device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from vflash_adapters.text_encoder.qwen3_vl import Qwen3VLProvider
from vflash_ports.text_encoder import Part, PicturePart, TextPart

CPU = torch.device("cpu")
PRESENTATION: list[Part] = [
    TextPart(text="<Picture 1>: "),
    PicturePart(pixels=torch.arange(48 * 64 * 3).remainder(256).reshape(48, 64, 3).to(torch.uint8)),
    TextPart(text="a fox"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("owned", [True, False])
def test_streaming_changes_no_bit(tiny_checkpoints: Mapping[str, Path], dtype: torch.dtype, owned: bool) -> None:
    """Text and pictures, in the stored dtype and cast, twice in a row."""
    folder = tiny_checkpoints["small"]
    with Qwen3VLProvider(hidden_state_index=50).open(folder, device=CPU, dtype=dtype) as encoder:
        expected = encoder.encode(PRESENTATION).embeds
    streamed = Qwen3VLProvider(hidden_state_index=50, streamed=True, owned=owned)
    with streamed.open(folder, device=CPU, dtype=dtype) as encoder:
        for _ in range(2):
            assert torch.equal(encoder.encode(PRESENTATION).embeds, expected)


def test_no_weight_is_read_on_the_wrong_device(tiny_checkpoints: Mapping[str, Path], monkeypatch) -> None:
    """With the work on another device, here meta, no operation meets a master that stayed behind."""
    whole_bool, whole_item = torch.Tensor.__bool__, torch.Tensor.item
    # meta tensors have no values for the model's own shape checks to look at
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda t: True if t.is_meta else whole_bool(t))
    monkeypatch.setattr(torch.Tensor, "item", lambda t: True if t.is_meta else whole_item(t))
    provider = Qwen3VLProvider(hidden_state_index=50, streamed=True)
    meta = torch.device("meta")
    with provider.open(tiny_checkpoints["small"], device=meta, dtype=torch.float32) as encoder:
        assert encoder._model is not None
        state = encoder._hidden_state(encoder._model, encoder._presenter.present([TextPart(text="a fox")]))
        assert state.is_meta
        assert all(not parameter.is_meta for parameter in encoder._model.parameters())
