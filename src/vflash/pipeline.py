"""`H3Pipeline`: options in, container inside."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from dependency_injector import providers

from vflash.container import Container
from vflash.domain.fields import from_mapping, shown
from vflash.domain.memory_plan import MemoryPlan
from vflash.domain.progress import PipelineProgress, ProgressCallback
from vflash.domain.request import Reference, VideoRequest
from vflash.domain.results import EncodeResult, VideoResult
from vflash.settings import Settings
from vflash.stages.reuse import ConditioningReuseScope
from vflash_ports.errors import ContractError
from vflash_ports.text_encoder import TextEncoderLoader

__all__ = [
    "ConditioningReuseScope",
    "EncodeResult",
    "H3Pipeline",
    "PipelineProgress",
    "Reference",
    "VideoRequest",
    "VideoResult",
]


class H3Pipeline:
    """A pipeline kept alive: models load at `prepare()` or at the first request, requests run one at a time.

    `model_dir` is a checkpoint folder in the diffusers layout; the keyword options are the fields of `Settings`.
    `text_encoder_loader` is a trusted callable: model folder -> Qwen3VLForConditionalGeneration on the CPU. Raises
    `ContractError` for a misspelt or unsupported option, before anything loads.
    """

    def __init__(
        self, model_dir: Path | str, *, text_encoder_loader: TextEncoderLoader | None = None, **options: Any
    ) -> None:
        settings = from_mapping(Settings, "H3Pipeline options", {"model_dir": model_dir, **options})
        if text_encoder_loader is not None and not callable(text_encoder_loader):
            raise ContractError(f"text_encoder_loader must be a callable, got {shown(text_encoder_loader)}")
        container = Container(settings=settings)
        if text_encoder_loader is not None:
            container.text_encoder_loader.override(providers.Object(text_encoder_loader))
        self.settings = settings
        self._engine = container.pipeline()

    @property
    def initialization_seconds(self) -> float:
        """All model loading so far."""
        return self._engine.initialization_seconds

    @property
    def request_count(self) -> int:
        return self._engine.request_count

    def prepare(self) -> None:
        """Check every choice and load what stays loaded, so that the first request does not pay for it."""
        self._engine.prepare()

    def plan(self, request: VideoRequest) -> MemoryPlan:
        """Device, pinned and host memory, and bytes to read, under every choice; nothing is loaded."""
        return self._engine.plan(request)

    def generate(
        self,
        request: VideoRequest,
        output_path: Path | str,
        *,
        progress: ProgressCallback | None = None,
        profile_denoise: bool = False,
        conditioning_reuse_scope: ConditioningReuseScope | None = None,
    ) -> VideoResult:
        """One request -> one MP4 at `output_path`, which must not exist, and its receipt beside it.

        `progress` is called after each unit of work; raising from it cancels within one evaluation and leaves the
        pipeline healthy. Raises `ContractError` for bad input, `ExecutionError` for a failed execution, which also
        retires the pipeline. `profile_denoise` times every piece of the denoising: `generation.denoise_profile` in the
        receipt, and a trace for Perfetto beside the clip; compare speeds without it. Requests that carry the same
        `conditioning_reuse_scope` reuse the last one's conditioning where prompt, inputs and canvas are equal.
        """
        return self._engine.generate(
            request,
            output_path,
            progress=progress,
            profile_denoise=profile_denoise,
            conditioning_reuse_scope=conditioning_reuse_scope,
        )

    def encode(
        self, request: VideoRequest, bundle_path: Path | str, *, progress: ProgressCallback | None = None
    ) -> EncodeResult:
        """Encode only: a sealed conditioning bundle in a new folder, for `NativeEngineSession` or `vflash denoise`."""
        return self._engine.encode(request, bundle_path, progress=progress)

    def decode(
        self,
        latents_path: Path | str,
        output_path: Path | str,
        *,
        audio_delivery_profile: str = "unchanged",
        progress: ProgressCallback | None = None,
    ) -> VideoResult:
        """Decode and deliver kept latents without denoising again."""
        return self._engine.decode(
            latents_path, output_path, audio_delivery_profile=audio_delivery_profile, progress=progress
        )

    def close(self) -> None:
        """Release every model; idempotent."""
        self._engine.close()

    def __enter__(self) -> H3Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
