"""`vflash sidecar`: a compressed copy of weights that loads faster from a slow disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vflash.cli import options
from vflash.cli.reporting import byte_progress_observer

app = typer.Typer(no_args_is_help=True, help="Prepare, verify and inspect a compressed copy of weights.")

Source = Annotated[Path, typer.Argument(help="A model folder, a component folder, an index or a safetensors file.")]
Sidecar = Annotated[Path, typer.Argument(help="The sidecar's folder.")]
Workers = Annotated[int, typer.Option(help="Threads: 1, 2, 4 or 8.")]
Merge = Annotated[str, typer.Option(help="How planes are put together: numba or numpy, with equal bytes.")]


@app.command()
def prepare(
    source: Source,
    sidecar: Sidecar,
    workers: Workers = 2,
    block_mib: Annotated[int, typer.Option(help="Bytes a block stands for, in MiB: 1, 2, 3 or 4.", min=1, max=4)] = 1,
    merge: Merge = "numba",
    as_json: options.Json = False,
) -> None:
    """Write a new sidecar. The source is only read; it stays needed, for headers and for going back."""
    from vflash.commands import Commands

    with byte_progress_observer(as_json=as_json) as observer:
        done = Commands.sidecar_prepare(
            source, sidecar, workers=workers, block_bytes=block_mib << 20, merge=merge, observer=observer
        )
    ratio = done["stored_bytes"] / done["source_bytes"]
    _print(done | {"ratio": round(ratio, 4)}, f"{sidecar}: {ratio:.1%} of {done['source_bytes']} bytes", as_json)


@app.command()
def verify(
    source: Source, sidecar: Sidecar, workers: Workers = 2, merge: Merge = "numba", as_json: options.Json = False
) -> None:
    """Decode every block and compare it with the source, byte for byte."""
    from vflash.commands import Commands

    with byte_progress_observer(as_json=as_json) as observer:
        done = Commands.sidecar_verify(source, sidecar, workers=workers, merge=merge, observer=observer)
    _print(done, f"{sidecar}: {done['blocks']} blocks equal their source", as_json)


@app.command()
def inspect(sidecar: Sidecar, as_json: options.JsonReport = False) -> None:
    """Sizes, ratios per dtype, writers and usable merges, from the manifest alone."""
    from vflash.commands import Commands

    found = Commands.sidecar_report(sidecar)
    if as_json:
        print(json.dumps(found))
        return
    usable = ", ".join(name for name, is_usable in found["merges"].items() if is_usable)
    print(f"{found['format']} version {found['version']}, merges usable here: {usable}")
    for name, component in found["components"].items():
        ratio = component["stored_bytes"] / component["source_bytes"]
        writer = " ".join(f"{key} {value}" for key, value in component["writer"].items())
        print(f"{name}: {len(component['files'])} files, {ratio:.1%} of {component['source_bytes']} bytes ({writer})")
        for dtype, totals in component["dtypes"].items():
            print(f"  {dtype:12} {totals['ratio']:.1%} of {totals['plain_bytes']} bytes")


def _print(values: dict[str, Any], line: str, as_json: bool) -> None:
    print(json.dumps(values) if as_json else line)
