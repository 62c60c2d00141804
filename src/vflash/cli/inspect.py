"""`vflash inspect`: what a delivered clip holds, and a contact sheet of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vflash.cli import options


def inspect(
    clip: Annotated[Path, typer.Argument(help="The MP4, or any video that can be decoded.")],
    contact_sheet: Annotated[
        Path | None, typer.Option(help="PNG to write: frames over time, the waveform under them.")
    ] = None,
    clip_frames: Annotated[
        int, typer.Option(help="Where jumps of the mean are looked for: every so many frames.", min=1)
    ] = 17,
    as_json: options.JsonReport = False,
) -> None:
    """Count, time and listen: streams, loudness, clipping, black and frozen frames, jumps at clip boundaries."""
    from vflash.commands import Commands

    found = Commands.clip_report(clip, contact_sheet=contact_sheet, clip_frames=clip_frames)
    if as_json:
        print(json.dumps(found))
    else:
        _print_lines(found)


def _print_lines(found: dict[str, Any]) -> None:
    video, sound = found["video"], found["sound"]
    print(
        f"video   {video['codec']} {video['width']}x{video['height']}, {found['frames']} frames at {video['fps']:g} fps"
    )
    if sound is None:
        print("sound   none")
    else:
        print(f"sound   {sound['samples']} samples at {sound['sample_rate_hz']} Hz, {sound['channels']} channels")
        print(f"level   {_level(sound['integrated_lufs'], 'LUFS')}, peak {_level(sound['true_peak_dbtp'], 'dBTP')}")
        print(f"clipped {sound['clipped_samples']} samples")
    print(f"black   {_ranges(found['black_frames'])}")
    print(f"frozen  {_ranges(found['frozen_frames'])}")
    worst = max(found["boundary_jumps"], key=lambda jump: jump["jump"], default=None)
    if worst is not None:
        usual = found["median_jump_elsewhere"]
        print(
            f"jumps   largest at a clip boundary {worst['jump']} at frame {worst['frame']}, elsewhere {usual} (median)"
        )


def _level(value: float | None, unit: str) -> str:
    return "silence" if value is None else f"{value:.1f} {unit}"


def _ranges(found: list[list[int]]) -> str:
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in found) or "none"
