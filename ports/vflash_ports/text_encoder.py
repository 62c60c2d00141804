"""The text encoder: a presentation (labels, pictures, videos, prompt) becomes hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import torch
    from transformers import Qwen3VLForConditionalGeneration


class TextEncoderLoader(Protocol):
    """Trusted Python callable: prepared model root -> the fixed Qwen3-VL architecture, on the CPU. Never a string."""

    def __call__(self, model_dir: Path) -> Qwen3VLForConditionalGeneration: ...


@frozen(kw_only=True)
class TextPart:
    """Tokenised on its own, verbatim, without special tokens; rows are tagged as text."""

    text: str


@frozen(kw_only=True, eq=False)
class PicturePart:
    """One vision block. `pixels` uint8 RGB [H, W, 3] on the CPU; rows are tagged as video."""

    pixels: torch.Tensor


@frozen(kw_only=True, eq=False)
class VideoPart:
    """Sampled frames uint8 RGB [F, H, W, 3]; one `<t seconds>` label and vision block per merged pair.

    An odd last frame is paired with itself by the encoder, which sizes the frames by F alone.
    """

    frames: torch.Tensor
    pair_seconds: tuple[float, ...]


Part = TextPart | PicturePart | VideoPart


@frozen(kw_only=True, eq=False)
class TextConditioning:
    """`embeds` [text_rows, text_dim] in the encoder's dtype and device; `tags` [text_rows] int64: 1 text, 0 video."""

    embeds: torch.Tensor
    tags: torch.Tensor


class TextEncoder(Protocol):
    def encode(self, presentation: Sequence[Part]) -> TextConditioning: ...


class TextEncoderProvider(Protocol):
    """Opens the encoder for a scope; weights are released when it ends."""

    def open(
        self, model_dir: Path, *, device: torch.device, dtype: torch.dtype
    ) -> AbstractContextManager[TextEncoder]: ...
