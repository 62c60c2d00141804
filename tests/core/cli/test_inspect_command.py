"""`vflash inspect` tells a person in lines what --json tells a program."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from typer.testing import CliRunner

from vflash.cli import app
from vflash.native.h3_media import encode_mp4


def test_lines_and_json_say_the_same(tmp_path: Path) -> None:
    """Counts, level and faults of a half-black clip with a soft tone."""
    video = torch.rand((1, 3, 48, 32, 64), generator=torch.Generator().manual_seed(0))
    video[:, :, 24:] = 0
    tone = 0.1 * torch.sin(torch.arange(64000) * 0.2)
    encode_mp4(video, tone.expand(1, 2, -1).contiguous(), tmp_path / "clip.mp4")
    lines = CliRunner().invoke(app, ["inspect", str(tmp_path / "clip.mp4")], catch_exceptions=False).stdout.splitlines()
    found = json.loads(CliRunner().invoke(app, ["inspect", str(tmp_path / "clip.mp4"), "--json"]).stdout)
    assert lines[0] == "video   h264 64x32, 48 frames at 24 fps"
    assert lines[1] == "sound   64000 samples at 32000 Hz, 2 channels"
    assert lines[2] == (
        f"level   {found['sound']['integrated_lufs']:.1f} LUFS, peak {found['sound']['true_peak_dbtp']:.1f} dBTP"
    )
    assert lines[4] == "black   24-47"
    assert found["black_frames"] == [[24, 47]]
    assert found["frozen_frames"][-1][1] == 47
