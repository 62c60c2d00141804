"""`kill -9` at any moment of a compilation: afterwards the assets are complete, or refused and compiled anew."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("way", "kills"),
    [
        ("random", 12),
        pytest.param("random", 50, marks=pytest.mark.slow),
        pytest.param("steps", 24, marks=pytest.mark.slow),
    ],
)
def test_killed_assets_are_complete_or_refused(way: str, kills: int, tmp_path: Path) -> None:
    """Kills at random moments, or around each fsync and rename; nothing half made is ever opened."""
    from killing import run_in_fresh_interpreter

    killed, complete = run_in_fresh_interpreter(__file__, way, kills, tmp_path)
    assert killed >= (kills if way == "random" else 20)
    assert killed > complete


def main(way: str, kills: int, folder: Path) -> None:
    from killing import kill_many

    from vflash.container import Container
    from vflash.settings import Settings
    from vflash_adapters.assets.safetensors_store import SafetensorsAssets, verify_assets
    from vflash_adapters.tiny_checkpoint import Variant, write_tiny_checkpoint
    from vflash_ports.errors import CheckpointError
    from vflash_ports.observer import SilentObserver

    model, assets = folder / "model", folder / "a"
    write_tiny_checkpoint(model, dimensions=next(iter(Variant)))

    def work() -> None:
        settings = Settings(model_dir=model, device="cpu", dtype="float32", profile="base16")
        Container(settings=settings).compile(assets, verify_content_hashes=True, observer=SilentObserver())

    def check() -> bool:
        was_complete = assets.exists()
        if not was_complete:
            try:
                SafetensorsAssets().open(assets)
            except CheckpointError:
                work()
            else:
                raise AssertionError("assets that do not exist were opened")
        SafetensorsAssets().open(assets)
        verify_assets(assets)
        assert {path.name for path in folder.iterdir()} <= {"model", "a", ".a.preparing"}
        shutil.rmtree(assets)
        return was_complete

    kill_many(way, work, check, kills)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
