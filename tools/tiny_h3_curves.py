"""The training's curves for the documents: a thinned JSON, and the same as an SVG with a panel for each stage.

    PYTHONPATH=tools python tools/tiny_h3_curves.py --log run/log.jsonl \\
        --output docs/benchmarks/2026-11-tiny-h3-training.json --picture docs/images/tiny-h3-training.svg
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

POINTS = 60
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 3, 300, 170, 34
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
_NOT_CURVES = {"at", "step", "share"}
Curves = dict[str, dict[str, list[float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, action="append", required=True, help="in the order they were written")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--picture", type=Path, required=True)
    args = parser.parse_args()
    lines = [json.loads(line) for log in args.log for line in log.read_text().splitlines() if line.startswith("{")]
    found = curves(lines)
    args.output.write_text(json.dumps(found) + "\n")
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    args.picture.write_text(svg(found))


def curves(lines: Iterable[Mapping[str, Any]], points: int = POINTS) -> Curves:
    """Stage -> name -> at most `points` means of neighbouring values; `step` counts over all runs of a stage.

    A run that begins again at a lower step than the last one reached goes on from there.
    """
    rows: dict[str, list[dict[str, float]]] = defaultdict(list)
    for line in lines:
        if "step" not in line:
            continue
        values = {k: float(v) for k, v in line.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        rows[line["stage"]].append({k: v for k, v in values.items() if k == "step" or k not in _NOT_CURVES})
    return {stage: _thinned(_continued(kept), points) for stage, kept in rows.items()}


def _continued(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    done, last = 0.0, 0.0
    found = []
    for row in rows:
        if row["step"] + done < last:
            done = last
        last = row["step"] + done
        found.append({**row, "step": last})
    return found


def _thinned(rows: Sequence[Mapping[str, float]], points: int) -> dict[str, list[float]]:
    names = [name for name in rows[0] if all(name in row for row in rows)]
    size = -(-len(rows) // points)
    groups = [rows[start : start + size] for start in range(0, len(rows), size)]
    return {name: [float(f"{mean(row[name] for row in group):.5g}") for group in groups] for name in names}


def svg(found: Curves) -> str:
    """Each curve on a logarithmic scale of its panel; what is not positive is left out."""
    rows = -(-len(found) // COLUMNS)
    width, height = COLUMNS * (PANEL_WIDTH + MARGIN), rows * (PANEL_HEIGHT + 2 * MARGIN)
    panels = [
        f'<g transform="translate({n % COLUMNS * (PANEL_WIDTH + MARGIN) + MARGIN / 2},'
        f'{n // COLUMNS * (PANEL_HEIGHT + 2 * MARGIN) + MARGIN})">{_panel(stage, curve)}</g>'
        for n, (stage, curve) in enumerate(found.items())
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{width}" height="{height}" fill="white"/>{"".join(panels)}</svg>\n'
    )


def _panel(stage: str, curve: Mapping[str, Sequence[float]]) -> str:
    steps = curve["step"]
    drawn = {name: values for name, values in curve.items() if name != "step" and any(v > 0 for v in values)}
    logs = [math.log10(v) for values in drawn.values() for v in values if v > 0]
    low, high = (min(logs), max(logs)) if logs else (0.0, 1.0)
    spread, last = max(high - low, 1e-9), max(*steps, 1.0)
    parts = [
        f'<rect width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}" fill="none" stroke="#999"/>',
        f'<text y="-6" font-weight="bold">{stage}</text>',
        f'<text y="{PANEL_HEIGHT + 13}">0 to {last:.0f} steps; {10**low:.3g} to {10**high:.3g}, logarithmic</text>',
    ]
    for number, (name, values) in enumerate(drawn.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = " ".join(
            f"{step / last * PANEL_WIDTH:.1f},{(high - math.log10(v)) / spread * PANEL_HEIGHT:.1f}"
            for step, v in zip(steps, values, strict=True)
            if v > 0
        )
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}"/>')
        parts.append(
            f'<text x="{PANEL_WIDTH - 6}" y="{14 + 13 * number}" text-anchor="end" fill="{colour}">{name}</text>'
        )
    return "".join(parts)


if __name__ == "__main__":
    main()
