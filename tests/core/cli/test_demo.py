"""Where the demo keeps its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from vflash.cli.demo import demo_checkpoint
from vflash_ports.errors import ContractError


def test_a_cache_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the folder and the variable that names another."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ContractError, match=r"file/vflash cannot be made .*another as XDG_CACHE_HOME"):
        demo_checkpoint()
