"""What tests share: tiny checkpoints and the reference pipeline as an oracle, both made once for all workers."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from vflash_adapters.tiny_checkpoint import Variant, write_tiny_checkpoint

# Ours and the reference's process must sum in one order to be compared bit for bit.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


def _load(name: str, path: Path) -> object:
    # Tests live in no package, so a module that several of them share is registered under its bare name.
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


_load("oracle", Path(__file__).parent / "golden" / "oracle.py")
_load("exports", Path(__file__).parent / "exports.py")
_load("killing", Path(__file__).parent / "killing.py")
_load("written_media", Path(__file__).parent / "golden" / "written_media.py")
_load("recording", Path(__file__).parent / "recording.py")
_load("fakes", Path(__file__).parent / "fakes.py")
_load("tool_run", Path(__file__).parent / "tool_run.py")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test session that all xdist workers see."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def tiny_checkpoints(shared_folder: Path) -> Mapping[str, Path]:
    """`small` and `other` in float32: read only."""
    root = shared_folder / "tiny-checkpoints"
    with FileLock(f"{root}.lock"):
        for variant in Variant:
            if not (root / variant / "model_index.json").exists():
                write_tiny_checkpoint(root / variant, dimensions=variant)
    return {variant.value: root / variant for variant in Variant}


@pytest.fixture(scope="session")
def oracle(shared_folder: Path) -> object:
    """The reference pipeline; see `tests/golden/oracle.py`."""
    from oracle import Oracle

    return Oracle(cache=shared_folder / "oracle")
