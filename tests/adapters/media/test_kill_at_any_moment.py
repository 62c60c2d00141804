"""`kill -9` at any moment leaves a whole MP4 or none, no orphan encoder, and nothing that the next run cannot sweep."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("kill_driver.py")


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_at_random_moments(kills: int, tmp_path: Path) -> None:
    """Kills fall before, during and after publishing: both outcomes occur, and no third."""
    folder = tmp_path / "clips"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, DRIVER, folder, str(kills)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["results"]) <= {"whole", "none"}
    assert sum(found["results"].values()) == kills
    assert found["results"].get("none", 0) > 0
    # A kill between making the scratch folder and locking it leaves an empty folder that nobody may claim.
    assert all(not any((folder / name).glob("owner")) for name in found["left"])
