"""A conditioning bundle: everything the denoiser needs of a request beside its noise, sealed in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

if TYPE_CHECKING:
    import torch


@frozen(kw_only=True, eq=False)
class ConditioningBundle:
    """`embeds` [text rows, text_dim] in the encoder's dtype, `tags` [text rows] int64; clean condition latents in
    packed order, `video` float32 [1, C, T, h, w] and `audio` float32 [2, A, C]. `body` is plain JSON: request,
    schedule, conditions, identities. `bundle_id` names the content; it is empty until the bundle has been sealed."""

    embeds: torch.Tensor
    tags: torch.Tensor
    video: tuple[torch.Tensor, ...]
    audio: tuple[torch.Tensor, ...]
    body: Mapping[str, Any]
    bundle_id: str = field(default="")


class ConditioningStore(Protocol):
    def check(self, folder: Path) -> None:
        """Before any work: refuse a folder that exists, or has no place to be."""
        ...

    def save(self, bundle: ConditioningBundle, folder: Path) -> str:
        """Seal into a new folder that appears whole or not at all; returns its `bundle_id`."""
        ...

    def load(self, folder: Path) -> ConditioningBundle:
        """Raises `CheckpointError` naming the file if anything is missing, added, altered or cut short."""
        ...
