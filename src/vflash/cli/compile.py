"""`vflash compile` and `vflash assets`: a checkpoint laid out for one profile, and the check of such a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vflash.cli import options
from vflash.cli.reporting import byte_progress_observer, progress_observer
from vflash.domain.fields import from_mapping
from vflash.settings import Settings


def compile_assets(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write; it must not exist.")],
    model: options.Model = None,
    profile: options.Profile = None,
    adapter: options.Adapter = None,
    adapter_alpha: options.AdapterAlpha = None,
    adapter_strength: options.AdapterStrength = None,
    adapter_qkv_order: options.AdapterQkvOrder = None,
    verify_content_hashes: Annotated[
        bool, typer.Option(help="Hash every file that is read; without it the record says: not measured.")
    ] = True,
    config: options.Config = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    linear: options.Linear = None,
    fp8_kernels: options.Fp8Kernels = None,
    weight_reading: options.WeightReading = None,
    weight_read_workers: options.WeightReadWorkers = None,
    weight_sidecar: options.WeightSidecar = None,
    qkv_order: options.QkvOrder = None,
    as_json: options.Json = False,
) -> None:
    """Write packed blocks, finished modulation tables and what else the profile needs: later starts only read."""
    table, _ = options.read_config(config)
    table |= options.given(
        model_dir=model,
        profile=profile,
        adapter=adapter,
        adapter_alpha=adapter_alpha,
        adapter_strength=adapter_strength,
        adapter_qkv_order=adapter_qkv_order,
        device=device,
        dtype=dtype,
        linear=linear,
        fp8_kernels=fp8_kernels,
        weight_reading=weight_reading,
        weight_read_workers=weight_read_workers,
        weight_sidecar=weight_sidecar,
        qkv_order=qkv_order,
    )
    options.require(table, "model_dir", "--model")
    settings = from_mapping(Settings, "the settings", table)

    from vflash.container import Container

    container = Container(settings=settings)
    with progress_observer(as_json=as_json) as observer:
        done = container.compile(output, verify_content_hashes=verify_content_hashes, observer=observer)
    print(json.dumps(done) if as_json else f"{output}: compiled for {done['profile']}")


def assets(
    folder: Annotated[Path, typer.Argument(help="A folder of `vflash compile`.")],
    renew: Annotated[
        bool, typer.Option("--renew", help="After a move or copy: stamp the files anew, once their hashes agree.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Hash every file of compiled assets and compare with their manifest."""
    from vflash.commands import Commands

    with byte_progress_observer(as_json=as_json) as observer:
        done = Commands.assets_verify(folder, renew=renew, observer=observer)
    print(json.dumps(done) if as_json else f"{folder}: {done['files']} files as compiled, receipt {done['receipt']}")
