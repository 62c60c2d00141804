"""What these tests share, so that they run alone where the reference's packages are missing:

python -m pytest --confcutdir=tests/gpu -m gpu tests/gpu
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from vflash_adapters.tiny_checkpoint import Variant, write_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """`small` and `other` in float32: read only."""
    root = tmp_path_factory.mktemp("tiny")
    for variant in Variant:
        write_tiny_checkpoint(root / variant, dimensions=variant)
    return {variant.value: root / variant for variant in Variant}


@pytest.fixture
def held() -> Callable[[], int]:
    """Bytes of tensors on the device, without the workspace that cuBLAS keeps from its first product on."""

    def allocated() -> int:
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        return torch.cuda.memory_allocated()

    return allocated
