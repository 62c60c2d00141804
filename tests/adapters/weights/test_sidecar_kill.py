"""`kill -9` at any moment of a preparation: afterwards the sidecar is complete, or refused and prepared anew."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

CHILD = Path(__file__)


@pytest.mark.parametrize("way", ["at-random-moments", "at-every-disk-operation"])
def test_a_killed_preparation_is_complete_or_refused(way: str, tmp_path: Path) -> None:
    """50 kills at random moments and one at each fsync and rename; the source is never touched."""
    memory = Path("/dev/shm")  # a kill loses no page cache, so memory proves as much as a disk, without its waits
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        # a fresh interpreter forks the victims, so that neither torch's nor pytest's threads are copied
        done = subprocess.run(
            [sys.executable, str(CHILD), way, folder], capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    killed, complete = (int(word) for word in done.stdout.split()[-2:])
    assert killed >= (50 if way == "at-random-moments" else 6)
    assert killed > complete  # the moments did fall into the work


def main(way: str, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    source = folder / "w.safetensors"
    generator = torch.Generator().manual_seed(0)
    tensors = {f"t{i}": torch.randn(400_000, generator=generator).bfloat16() for i in range(4)}
    save_file(tensors, source)
    before = hashlib.sha256(source.read_bytes()).hexdigest(), source.stat().st_mtime_ns
    victims = random_moments(source, folder) if way == "at-random-moments" else disk_operations(source, folder)
    killed = complete = 0
    for victim in victims:
        killed += victim()
        complete += check_and_clear(source, folder / "s", tensors)
        assert (hashlib.sha256(source.read_bytes()).hexdigest(), source.stat().st_mtime_ns) == before
    print(killed, complete)


def random_moments(source: Path, folder: Path) -> list[Callable[[], bool]]:
    started = time.monotonic()
    run_and_kill(source, folder / "s", lambda pid: None)
    duration = time.monotonic() - started
    draw = random.Random(11)
    clear(folder / "s")

    return [partial(kill_after, source, folder / "s", draw.uniform(0, 1.1 * duration)) for _ in range(50)]


def kill_after(source: Path, sidecar: Path, delay: float) -> bool:
    def kill(pid: int) -> None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)

    run_and_kill(source, sidecar, kill)
    return True


def disk_operations(source: Path, folder: Path) -> list[Callable[[], bool]]:
    return [
        partial(run_and_kill, source, folder / "s", lambda pid: None, partial(die_at, count, after))
        for count in range(1, 9)
        for after in (False, True)
    ]


def die_at(count: int, after: bool) -> None:
    """Make this process kill itself before or after its `count`-th fsync or rename."""
    from vflash_adapters import publish

    left = [count]

    def deadly(operation: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = operation(*arguments)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    os.fsync = deadly(os.fsync)  # type: ignore[assignment]
    publish._renameat2 = deadly(publish._renameat2)  # type: ignore[assignment]


def run_and_kill(
    source: Path, sidecar: Path, kill: Callable[[int], None], arm: Callable[[], None] = lambda: None
) -> bool:
    from vflash_adapters.weights.sidecar.merges import MergeChoice
    from vflash_adapters.weights.sidecar.prepare import prepare

    pid = os.fork()
    if pid == 0:
        try:
            arm()
            prepare(source, sidecar, merge=MergeChoice.NUMPY)
            os._exit(0)
        finally:
            os._exit(1)
    kill(pid)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def check_and_clear(source: Path, sidecar: Path, tensors: dict[str, object]) -> bool:
    """True if the sidecar is whole; if it is not there, reading it is refused and preparing again works."""
    import torch

    from vflash_adapters.weights.sidecar.merges import MergeChoice
    from vflash_adapters.weights.sidecar.prepare import prepare
    from vflash_adapters.weights.sidecar.source import SidecarWeights
    from vflash_ports.errors import CheckpointError

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
        for name, tensor in tensors.items():
            assert torch.equal(reader.get_tensor(name), tensor)
    assert {path.name for path in sidecar.parent.iterdir()} <= {source.name, sidecar.name, f".{sidecar.name}.preparing"}
    clear(sidecar)
    return was_complete


def clear(sidecar: Path) -> None:
    import shutil

    shutil.rmtree(sidecar)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
