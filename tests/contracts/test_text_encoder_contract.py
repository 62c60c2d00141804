"""What every text encoder provider promises, over the default, one with a custom loader, and a small fake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from vflash_adapters.text_encoder.qwen3_vl import Qwen3VLProvider
from vflash_ports.errors import ContractError
from vflash_ports.text_encoder import (
    Part,
    PicturePart,
    TextConditioning,
    TextEncoderProvider,
    TextPart,
    VideoPart,
)

CPU = torch.device("cpu")
PICTURE = PicturePart(pixels=torch.arange(48 * 64 * 3).remainder(256).reshape(48, 64, 3).to(torch.uint8))
VIDEO = VideoPart(frames=PICTURE.pixels.expand(3, -1, -1, -1).clone(), pair_seconds=(0.25, 1.0))


def whole_model(model_dir: Path) -> Any:
    """A trusted loader that returns every layer, as an application's own would."""
    from transformers import Qwen3VLForConditionalGeneration

    return Qwen3VLForConditionalGeneration.from_pretrained(model_dir / "text_encoder", local_files_only=True)


class FakeProvider:
    """One row a word, one row a picture, one row a frame pair with its label; values depend on the part alone."""

    width = 8

    @contextmanager
    def open(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> Iterator[FakeEncoder]:
        yield FakeEncoder(device, dtype)


class FakeEncoder:
    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def encode(self, presentation: Sequence[Part]) -> TextConditioning:
        rows: list[tuple[int, float]] = []
        for part in presentation:
            match part:
                case TextPart():
                    rows += [(1, float(sum(map(ord, word)))) for word in part.text.split()]
                case PicturePart():
                    rows.append((0, float(part.pixels.float().mean())))
                case VideoPart():
                    rows += [row for seconds in part.pair_seconds for row in ((1, seconds), (0, seconds))]
        if not rows:
            raise ContractError("the prompt is empty")
        values = torch.tensor([value for _, value in rows], device=self.device)
        embeds = torch.sin(values[:, None] * torch.arange(1, FakeProvider.width + 1)).to(self.dtype)
        return TextConditioning(embeds=embeds, tags=torch.tensor([tag for tag, _ in rows]))


PROVIDERS = {
    "default": Qwen3VLProvider(hidden_state_index=50),
    "custom-loader": Qwen3VLProvider(hidden_state_index=50, loader=whole_model),
    "streamed": Qwen3VLProvider(hidden_state_index=50, streamed=True),
    "streamed-mapped": Qwen3VLProvider(hidden_state_index=50, streamed=True, owned=False),
    "fake": FakeProvider(),
}


@pytest.fixture(params=PROVIDERS, scope="module")
def provider(request: pytest.FixtureRequest) -> TextEncoderProvider:
    chosen: TextEncoderProvider = PROVIDERS[request.param]
    return chosen


@pytest.fixture(scope="module")
def encoder(provider: TextEncoderProvider, tiny_checkpoints: Mapping[str, Path]) -> Iterator[Any]:
    with provider.open(tiny_checkpoints["small"], device=CPU, dtype=torch.float32) as opened:
        yield opened


def test_rows_and_tags_agree(encoder: Any) -> None:
    """One finite row of the opened dtype a tag; text is tagged 1, pictures and frames 0, in presentation order."""
    found = encoder.encode([TextPart(text="<Picture 1>: "), PICTURE, TextPart(text="a fox")])
    assert found.embeds.ndim == 2
    assert found.embeds.dtype is torch.float32
    assert found.embeds.isfinite().all()
    assert found.tags.shape == (len(found.embeds),)
    assert found.tags.dtype is torch.int64
    changes = found.tags.unique_consecutive().tolist()
    assert changes == [1, 0, 1]


def test_each_frame_pair_is_labelled(encoder: Any) -> None:
    """A video contributes one text label and one vision run per pair; an odd last frame makes a pair of its own."""
    found = encoder.encode([TextPart(text="<Video 1>: "), VIDEO, TextPart(text="a fox")])
    assert found.tags.unique_consecutive().tolist() == [1, 0, 1, 0, 1]


def test_text_parts_are_encoded_apart(encoder: Any) -> None:
    """Splitting a text changes its rows at most in number: the rows of the parts add up."""
    whole = [len(encoder.encode([TextPart(text=text)]).tags) for text in ("a red ", "fox")]
    assert len(encoder.encode([TextPart(text="a red "), TextPart(text="fox")]).tags) == sum(whole)


def test_encoding_is_repeatable_and_depends_on_the_prompt(encoder: Any) -> None:
    """The same presentation gives the same bits; another prompt gives others."""
    first, again, other = (encoder.encode([TextPart(text=text)]).embeds for text in ("a fox", "a fox", "one hen"))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert first.shape != other.shape or not torch.equal(first, other)


def test_an_empty_presentation_is_refused(encoder: Any) -> None:
    """No token at all is the caller's error, not a crash inside the model."""
    with pytest.raises(ContractError, match="empty"):
        encoder.encode([])


def test_the_asked_dtype_is_delivered(provider: TextEncoderProvider, tiny_checkpoints: Mapping[str, Path]) -> None:
    """A BF16 scope yields BF16 embeddings."""
    with provider.open(tiny_checkpoints["other"], device=CPU, dtype=torch.bfloat16) as opened:
        assert opened.encode([TextPart(text="a fox")]).embeds.dtype is torch.bfloat16


def test_custom_loader_changes_nothing(tiny_checkpoints: Mapping[str, Path]) -> None:
    """A loader of the whole model conditions bit-equally to the default prefix."""
    found = []
    for name in ("default", "custom-loader"):
        with PROVIDERS[name].open(tiny_checkpoints["small"], device=CPU, dtype=torch.float32) as opened:
            found.append(opened.encode([PICTURE, VIDEO, TextPart(text="a fox")]).embeds)
    torch.testing.assert_close(*found, rtol=0, atol=0)
