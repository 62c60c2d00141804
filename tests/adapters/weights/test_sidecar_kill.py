"""`kill -9` at any moment of a preparation: afterwards the sidecar is complete, or refused and prepared anew."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("way", "kills"),
    [("random", 12), pytest.param("random", 50, marks=pytest.mark.slow), ("steps", 16)],
)
def test_a_killed_preparation_is_complete_or_refused(way: str, kills: int, tmp_path: Path) -> None:
    """Kills at random moments, or around each fsync and rename; the source is never touched."""
    from killing import run_in_fresh_interpreter

    killed, complete = run_in_fresh_interpreter(__file__, way, kills, tmp_path)
    assert killed >= (kills if way == "random" else 6)
    assert killed > complete  # the moments did fall into the work


def main(way: str, kills: int, folder: Path) -> None:
    import torch
    from killing import kill_many
    from safetensors.torch import save_file

    from vflash_adapters.weights.sidecar.merges import MergeChoice
    from vflash_adapters.weights.sidecar.prepare import prepare
    from vflash_adapters.weights.sidecar.source import SidecarWeights
    from vflash_ports.errors import CheckpointError

    source, sidecar = folder / "w.safetensors", folder / "s"
    generator = torch.Generator().manual_seed(0)
    tensors = {f"t{i}": torch.randn(200_000, generator=generator).bfloat16() for i in range(4)}
    save_file(tensors, source)
    before = hashlib.sha256(source.read_bytes()).hexdigest(), source.stat().st_mtime_ns

    def check() -> bool:
        was_complete = sidecar.exists()
        weights = SidecarWeights(source, sidecar, read_workers=1, merge=MergeChoice.NUMPY)
        if not was_complete:
            try:
                weights.specs()
            except CheckpointError:
                prepare(source, sidecar, merge=MergeChoice.NUMPY, workers=1)
            else:
                raise AssertionError("a sidecar that does not exist was read")
        with SidecarWeights(source, sidecar, read_workers=1, merge=MergeChoice.NUMPY).open() as reader:
            assert all(torch.equal(reader.get_tensor(name), tensor) for name, tensor in tensors.items())
        assert {path.name for path in folder.iterdir()} <= {source.name, sidecar.name, f".{sidecar.name}.preparing"}
        assert (hashlib.sha256(source.read_bytes()).hexdigest(), source.stat().st_mtime_ns) == before
        shutil.rmtree(sidecar)
        return was_complete

    kill_many(way, lambda: prepare(source, sidecar, merge=MergeChoice.NUMPY), check, kills)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
