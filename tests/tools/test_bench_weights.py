"""The weights bench runs on small files and judges its own targets."""

from __future__ import annotations

import json
from pathlib import Path

from tool_run import run_tool


def test_the_bench_measures_every_target(tmp_path: Path) -> None:
    """Synthetic weights, two repeats, 64 MiB: sizes and memory meet their targets; times are only present."""
    words = ("--output", str(tmp_path / "b.json"), "--folder", str(tmp_path), "--repeats", "2", "--large-mib", "64")
    run_tool("tools/bench_weights.py", *words)
    report = json.loads((tmp_path / "b.json").read_text())
    assert report["material"].startswith("synthetic")
    targets = {target["target"]: target for target in report["targets"]}
    assert len(targets) == 11
    assert all(target["met"] for name, target in targets.items() if "stored" in name or "anonymous" in name)
    assert report["storage"]["break_even_gb_s_per_processor"] > 0
    assert not list(tmp_path.glob("bench-weights-*"))
