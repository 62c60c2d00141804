"""What commands run that no pipeline does: no `Settings`, no model; files in, a report of plain JSON values out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dependency_injector import containers, providers
from dependency_injector.providers import Provider

from vflash.model.load import LINEARS
from vflash.stages.inspect_checkpoint import report_checkpoint
from vflash.stages.loudness import levels
from vflash_adapters.assets.safetensors_store import verify_assets
from vflash_adapters.judge.file import judge_report
from vflash_adapters.judge.parse import caption_objection
from vflash_adapters.machine import describe_machine
from vflash_adapters.media.inspect import inspect_file
from vflash_adapters.packed.unpacked_cache import cached_tiny_h3
from vflash_adapters.quantised.model_folder import quantise_model
from vflash_adapters.weights import maintenance
from vflash_adapters.weights.layouts.canonical_source import CanonicalOpener
from vflash_adapters.weights.mmap_source import MmapWeights


class Commands(containers.DeclarativeContainer):
    """`Commands.clip_report(path, ...)`: each provider is called with what its command was given."""

    machine: Provider[dict[str, Any]] = providers.Callable(describe_machine)
    checkpoint_report: Provider[dict[str, Any]] = providers.Callable(report_checkpoint, MmapWeights)
    sidecar_prepare: Provider[dict[str, Any]] = providers.Callable(maintenance.prepare_sidecar)
    sidecar_verify: Provider[dict[str, Any]] = providers.Callable(maintenance.verify_sidecar)
    sidecar_report: Provider[dict[str, Any]] = providers.Callable(maintenance.report_sidecar)
    record_hashes: Provider[dict[str, Any]] = providers.Callable(maintenance.record_hashes)
    check_hashes: Provider[dict[str, Any]] = providers.Callable(maintenance.compare_hashes)
    quantise: Provider[dict[str, Any]] = providers.Callable(quantise_model, CanonicalOpener(MmapWeights), LINEARS)
    assets_verify: Provider[dict[str, Any]] = providers.Callable(verify_assets)
    clip_report: Provider[dict[str, Any]] = providers.Callable(inspect_file, meter=levels)
    clip_verdict: Provider[dict[str, Any]] = providers.Callable(judge_report)
    caption_objection: Provider[str | None] = providers.Callable(caption_objection)
    demo_checkpoint: Provider[Path] = providers.Callable(cached_tiny_h3)
