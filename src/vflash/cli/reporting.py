"""What a person or a program sees while a command runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from vflash.domain.progress import PipelineProgress, ProgressCallback
from vflash_ports.observer import Observer, SilentObserver


@contextmanager
def progress_reporter(*, as_json: bool, counted: ProgressColumn | None = None) -> Iterator[ProgressCallback]:
    """Bars with the time left on stderr, or one JSON object a line. `counted` shows how far a bar is."""
    if as_json:
        yield _print_json_line
        return
    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(),
        counted or MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def report(event: PipelineProgress) -> None:
            if event.stage not in tasks:
                tasks[event.stage] = bars.add_task(event.stage, total=event.total)
            bars.update(tasks[event.stage], completed=event.completed)

        yield report


@contextmanager
def byte_progress_observer(*, as_json: bool) -> Iterator[Observer]:
    """For work that is counted in bytes."""
    with progress_reporter(as_json=as_json, counted=DownloadColumn(binary_units=True)) as report:
        yield _Reporting(report)


@contextmanager
def progress_observer(*, as_json: bool) -> Iterator[Observer]:
    """For work that is counted in pieces."""
    with progress_reporter(as_json=as_json) as report:
        yield _Reporting(report)


class _Reporting(SilentObserver):
    def __init__(self, report: ProgressCallback) -> None:
        self._report = report

    def progress(self, stage: str, completed: int, total: int) -> None:
        self._report(PipelineProgress(stage=stage, completed=completed, total=total))


def _print_json_line(event: PipelineProgress) -> None:
    line = {"stage": event.stage, "completed": event.completed, "total": event.total}
    with suppress(OSError):  # a reader that is gone, or a full disk under a log, does not cost the clip
        print(json.dumps(line), file=sys.stderr, flush=True)


def print_result(receipt: Mapping[str, Any], path: object, elapsed_seconds: float, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(receipt, ensure_ascii=False))
        return
    print(f"{path} ({elapsed_seconds:.1f} s)")


def report_stop(stop: KeyboardInterrupt) -> None:
    """What was paid for and kept is told on the way out."""
    for line in ("interrupted", *getattr(stop, "__notes__", ())):
        print(f"vflash: {line}", file=sys.stderr)


def report_error(error: Exception) -> None:
    """One plain text on stderr; never a traceback for what was raised on purpose."""
    print(f"vflash: {error}", file=sys.stderr)
