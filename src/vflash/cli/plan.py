"""`vflash plan`: what a request needs and whether it fits, before anything loads."""

from __future__ import annotations

import json
from typing import Any

import typer

from vflash.cli import options
from vflash.cli.fields import REQUEST, SETTINGS, Given, takes
from vflash.cli.generate import check_files

STAND_IN_PROMPT = "A prompt of about fifty tokens, which is what most are; its length hardly moves the plan."


@takes(request=REQUEST, settings=SETTINGS)
def plan(given: Given, as_json: options.JsonReport = False) -> None:
    """Device, pinned and host memory and bytes to read, for every weight residency and linear; exit 1 if it won't fit.

    It takes what generate takes, so that one command line serves both. The prompt may be left out: a text of usual
    length stands in for it.
    """
    given.request_table.setdefault("prompt", STAND_IN_PROMPT)
    request, settings = given.request(), given.settings()
    check_files(request)

    from vflash.container import Container

    with Container(settings=settings).pipeline() as engine:
        found = engine.plan(request).describe()
    print(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))
    if not found["chosen"]["fits"]:
        raise typer.Exit(1)


def _lines(found: dict[str, Any]) -> list[str]:
    rows, machine, chosen = found["rows"], found["machine"], found["chosen"]
    device = (
        "the host" if machine["device_bytes"] is None else f"{_gib(machine['device_bytes'])} on {machine['device']}"
    )
    lines = [
        f"{found['canvas']['width']}x{found['canvas']['height']}, {found['model_frames']} frames, "
        f"{found['evaluations']} evaluations: {rows['total']} packed rows",
        f"room: {device}, {_gib(machine['host_bytes'])} of host memory",
        f"{'':2}{'weights':12}{'linear':17}{'device':>11}{'pinned':>11}{'host':>11}{'to read':>11}  fits",
    ]
    for choice in found["choices"]:
        same = all(choice[name] == chosen[name] for name in ("weight_residency", "linear"))
        sizes = "".join(
            f"{_gib(choice[name]):>11}" for name in ("device_bytes", "pinned_bytes", "host_bytes", "bytes_to_read")
        )
        lines.append(
            f"{'* ' if same else '  '}{choice['weight_residency']:12}{choice['linear']:17}{sizes}"
            f"  {'yes' if choice['fits'] else 'no: ' + '; '.join(choice['obstacles'])}"
        )
    stages = ", ".join(f"{name} {_gib(size)}" for name, size in chosen["device_bytes_by_stage"].items())
    return [*lines, f"device, stage by stage: {stages}", *([found["advice"]] if found["advice"] else [])]


def _gib(byte_count: int) -> str:
    return f"{byte_count / 2**30:.2f} GiB"
