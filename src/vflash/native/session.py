"""`NativeEngineSession`: the denoiser alone, from a conditioning bundle to latents, kept between requests."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from vflash.container import Container
from vflash.domain.fields import from_mapping
from vflash.domain.progress import ProgressCallback
from vflash.settings import Settings

__all__ = ["NativeEngineSession"]


class NativeEngineSession:
    """`model_dir` is a checkpoint folder; the keyword options are the fields of `Settings`.

    Bundles are written by `vflash encode` or `H3Pipeline.encode`. Raises `ContractError` for a misspelt or unsupported
    option, before anything loads.
    """

    def __init__(self, model_dir: Path | str, **options: Any) -> None:
        self.settings = from_mapping(Settings, "NativeEngineSession options", {"model_dir": model_dir, **options})
        self._session = Container(settings=self.settings).denoise_session()

    @property
    def initialization_seconds(self) -> float:
        """All model loading so far."""
        return self._session.initialization_seconds

    @property
    def request_count(self) -> int:
        return self._session.request_count

    def prepare(self) -> None:
        """Check every choice and load the denoiser, so that the first request does not wait for it."""
        self._session.prepare()

    def generate(
        self,
        bundle: Path | str,
        output_latents: Path | str,
        *,
        progress_callback: ProgressCallback | None = None,
        profile_denoise: bool = False,
    ) -> dict[str, Any]:
        """One bundle -> latents at `output_latents`, which must not exist; `vflash decode` makes a clip of them.

        Returns plain JSON values. `session`: `request_index` from 1, `initialization_seconds`,
        `initialization_charged_seconds` (loading, charged once) and `request_wall_seconds` (the request itself, writing
        the latents included). `generation`: evaluations, stage seconds, memory peaks, `denoise_profile`.
        """
        return self._session.generate(
            bundle, output_latents, progress_callback=progress_callback, profile_denoise=profile_denoise
        )

    def close(self) -> None:
        """Release the denoiser; idempotent."""
        self._session.close()

    def __enter__(self) -> NativeEngineSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
