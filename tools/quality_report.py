"""What was measured of each clip, on disk; and all of it as one report and as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import attrs
from attrs import frozen

from calibrate_judge import wilson

DISTANCES = ("psnr_db", "ssim", "sound_snr_db")


@frozen(kw_only=True)
class Record:
    """One clip. `right` by attribute; `seconds` of its request, None where several ran at once; `against_exact` and
    `velocity_error` where they were asked for."""

    right: Mapping[str, bool]
    seconds: float | None = None
    against_exact: Mapping[str, float] | None = None
    velocity_error: Mapping[str, float] | None = None

    def save(self, path: Path) -> None:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(attrs.asdict(self)))
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Record:
        return cls(**json.loads(path.read_text()))


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """One mode and configuration: shares with 95 % intervals (Wilson), means of the rest, and of how many clips."""
    names = sorted({name for record in records for name in record.right})
    found: dict[str, Any] = {
        "clips": len(records),
        "judged": {
            "all": _share(right for record in records for right in record.right.values()),
            **{name: _share(r.right[name] for r in records if name in r.right) for name in names},
        },
    }
    for key in ("against_exact", "velocity_error"):
        rows = [row for record in records if (row := getattr(record, key))]
        if rows:
            found[key] = {"clips": len(rows), **{name: mean(row[name] for row in rows) for name in rows[0]}}
    seconds = [record.seconds for record in records if record.seconds is not None]
    if seconds:
        found["seconds_a_clip"] = mean(seconds)
    return found


def _share(answers: Iterable[bool]) -> dict[str, float]:
    given = list(answers)
    low, high = wilson(sum(given), len(given))
    return {"right": sum(given), "asked": len(given), "share": sum(given) / len(given), "low95": low, "high95": high}


def tables(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each mode and configuration; then the attributes, a column each."""
    return f"{_overall(results)}\n{_by_attribute(results)}"


def _overall(results: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        "| mode | configuration | clips | attributes right | velocity error video / audio | PSNR, SSIM, sound SNR "
        "| s a clip |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, name, found in _rows(results):
        error, near = found.get("velocity_error"), found.get("against_exact")
        cells = (
            _with_interval(found["judged"]["all"]),
            f"{error['video']:.4f} / {error['audio']:.4f}" if error else "",
            f"{near['psnr_db']:.1f} dB, {near['ssim']:.3f}, {near['sound_snr_db']:.1f} dB" if near else "",
            f"{found['seconds_a_clip']:.1f}" if "seconds_a_clip" in found else "",
        )
        lines.append(f"| {task} | {name} | {found['clips']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _by_attribute(results: Mapping[str, Mapping[str, Any]]) -> str:
    names = sorted({name for _, _, found in _rows(results) for name in found["judged"]} - {"all"})
    lines = [f"| mode | configuration | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for task, name, found in _rows(results):
        cells = (_with_interval(found["judged"][key]) if key in found["judged"] else "" for key in names)
        lines.append(f"| {task} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _rows(results: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
    return ((task, name, found) for task, by_name in results.items() for name, found in by_name.items())


def _with_interval(share: Mapping[str, float]) -> str:
    return f"{share['share']:.1%} ({share['low95']:.1%} to {share['high95']:.1%})"
