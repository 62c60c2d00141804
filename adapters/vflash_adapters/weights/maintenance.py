"""What the command line does to weight files: plain arguments in, JSON-ready findings out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import asdict

from vflash_adapters.weights.hash_manifest import HashReport, check_hashes, write_hashes
from vflash_adapters.weights.sidecar.inspect import inspect
from vflash_adapters.weights.sidecar.merges import merge_choice
from vflash_adapters.weights.sidecar.prepare import prepare
from vflash_adapters.weights.sidecar.verify import verify
from vflash_ports.observer import Observer


def prepare_sidecar(
    source: Path, sidecar: Path, *, workers: int, block_bytes: int, merge: str, observer: Observer
) -> dict[str, Any]:
    done = prepare(
        source, sidecar, workers=workers, block_bytes=block_bytes, merge=merge_choice(merge), observer=observer
    )
    return {**asdict(done), "sidecar": str(done.sidecar), "merge": merge}


def verify_sidecar(source: Path, sidecar: Path, *, workers: int, merge: str, observer: Observer) -> dict[str, Any]:
    done = verify(source, sidecar, workers=workers, merge=merge_choice(merge), observer=observer)
    return {**asdict(done), "merge": merge}


def report_sidecar(sidecar: Path) -> dict[str, Any]:
    return dict(inspect(sidecar))


def record_hashes(folder: Path, manifest: Path, *, workers: int, observer: Observer) -> dict[str, Any]:
    return _reported(write_hashes(folder, manifest, workers=workers, observer=observer))


def compare_hashes(folder: Path, manifest: Path, *, workers: int, observer: Observer) -> dict[str, Any]:
    return _reported(check_hashes(folder, manifest, workers=workers, observer=observer))


def _reported(report: HashReport) -> dict[str, Any]:
    return {**asdict(report), "manifest": str(report.manifest)}
