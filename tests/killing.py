"""Kill a piece of work at many moments. Run inside a fresh interpreter: victims are forked, so no threads are copied.

python THIS_TEST.py random|steps FOLDER   ->   prints "<killed> <complete>"
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def run_in_fresh_interpreter(script: str, way: str, kills: int, tmp_path: Path) -> tuple[int, int]:
    """How many victims were killed, and how many had been complete by then."""
    memory = Path("/dev/shm")  # a kill loses no page cache, so memory proves as much as a disk, without its waits
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        done = subprocess.run(
            [sys.executable, script, way, str(kills), folder],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    killed, complete = (int(word) for word in done.stdout.split()[-2:])
    return killed, complete


def kill_many(way: str, work: Callable[[], None], check: Callable[[], bool], kills: int) -> None:
    """`work` is killed again and again; after each, `check` says whether its result is whole, and clears it away.

    `random`: `kills` moments spread over a little more than the whole work. `steps`: before and after each of the first
    fsyncs and renames.
    """
    started = time.monotonic()
    _fork(work, lambda pid: None)
    duration = time.monotonic() - started
    assert check(), "the work does not succeed when it is left alone"
    draw, killed, complete = random.Random(11), 0, 0
    for number in range(kills):
        if way == "random":
            _fork(work, lambda pid: _kill_after(pid, draw.uniform(0, 1.1 * duration)))
            killed += 1
        else:
            killed += _fork(lambda number=number: _armed(work, 1 + number // 2, bool(number % 2)), lambda pid: None)
        complete += check()
    print(killed, complete)


def _fork(work: Callable[[], None], kill: Callable[[int], None]) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    kill(pid)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def _kill_after(pid: int, delay: float) -> None:
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)


def _armed(work: Callable[[], None], count: int, after: bool) -> None:
    """`work` in a process that kills itself before or after its `count`-th fsync or rename."""
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
    work()
