"""The heavy things of one pipeline, each opened at first use and then kept or released."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from attrs import frozen

from vflash.model.transformer import Denoiser
from vflash.stages.kept import Kept
from vflash_ports.latent_codec import LatentCodec
from vflash_ports.text_encoder import TextEncoder


@frozen(kw_only=True, eq=False)
class Models:
    """`denoisers` by component folder; `first_denoiser` is the one that is loaded ahead of requests."""

    encoder: Kept[TextEncoder]
    codec: Kept[LatentCodec]
    denoisers: Mapping[str, Kept[Denoiser]]
    first_denoiser: str

    @property
    def open_seconds(self) -> float:
        """What all opening has cost so far."""
        return sum(kept.open_seconds for kept in self._all())

    @property
    def denoiser_is_open(self) -> bool:
        return any(kept.is_open for kept in self.denoisers.values())

    def open_kept(self) -> None:
        """Load what stays loaded between requests."""
        for kept in (self.encoder, self.codec, self.denoisers[self.first_denoiser]):
            if kept.keep:
                kept.open()

    def release(self) -> None:
        with ExitStack() as every:  # one that fails to close does not keep the others
            for kept in self._all():
                every.callback(kept.close)

    def _all(self) -> tuple[Kept[Any], ...]:
        return (self.encoder, self.codec, *self.denoisers.values())
