"""What these tests share, so that they run alone where the reference's packages are missing:

python -m pytest --confcutdir=tests/gpu -m gpu tests/gpu
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from vflash_adapters.tiny_checkpoint import Variant, write_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """`small` and `other` in float32: read only."""
    root = tmp_path_factory.mktemp("tiny")
    for variant in Variant:
        write_tiny_checkpoint(root / variant, dimensions=variant)
    return {variant.value: root / variant for variant in Variant}
