"""What this machine has: packages, devices, FFmpeg."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

import torch

from vflash_adapters.media.ffmpeg_binary import find_ffmpeg
from vflash_ports.errors import VflashError

PACKAGES = ("torch", "transformers", "diffusers", "safetensors", "av", "triton", "zstandard", "numba")
OPTIONAL = {"triton": "gpu", "zstandard": "weight-io", "numba": "weight-io"}


def describe_machine() -> dict[str, Any]:
    """Plain JSON values; `problems` says what will not run, with the cure."""
    problems: list[str] = []
    return {
        "system": _system(),
        "packages": _packages(),
        "devices": _devices(),
        "ffmpeg": _ffmpeg(problems),
        "problems": problems,
    }


def _system() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = f"not installed; optional: pip install 'vflash[{OPTIONAL[name]}]'"
    return found


def _devices() -> dict[str, str]:
    devices = {"cpu": f"{torch.get_num_threads()} threads"}
    if not torch.cuda.is_available():
        return devices | {"cuda": "none that torch sees: give --device cpu, or set VFLASH_DEVICE=cpu"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices[f"cuda:{index}"] = (
            f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB, sm_{properties.major}{properties.minor}"
        )
    return devices


def _ffmpeg(problems: list[str]) -> dict[str, str]:
    try:
        return {"executable": str(find_ffmpeg())}
    except VflashError as error:
        problems.append(str(error))
        return {"executable": "not found"}
