"""`vflash doctor`: what this machine can run, and whether a checkpoint is complete."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer

from vflash.cli import options


def doctor(model: options.Model = None, as_json: options.JsonReport = False) -> None:
    """Look at packages, devices and FFmpeg; with --model also at every config and weight header of a checkpoint."""
    from vflash.commands import Commands

    findings = Commands.machine()
    if model is not None:
        findings["checkpoint"] = Commands.checkpoint_report(model, findings["problems"])
    if as_json:
        print(json.dumps(findings, indent=2))
    else:
        _print_table(findings)
    if findings["problems"]:
        raise typer.Exit(1)


def _print_table(findings: dict[str, Any]) -> None:
    for section, values in findings.items():
        if section == "problems":
            continue
        print(section)
        for name, value in values.items():
            print(f"  {name:24} {value}")
    for problem in findings["problems"]:
        print(f"problem: {problem}", file=sys.stderr)
    count = len(findings["problems"])
    print("all well" if not count else "1 problem" if count == 1 else f"{count} problems")
