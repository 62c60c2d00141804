"""A script of `tools/` as a user runs it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_tool(*words: str) -> None:
    """`python tools/...` from the repository; its exit status must be 0."""
    paths = os.pathsep.join([str(ROOT / "tools"), *sys.path])
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
