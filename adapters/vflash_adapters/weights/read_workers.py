"""A fixed number of threads that share a list of jobs; the first failure stops them all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from vflash_ports.errors import ContractError

Job = TypeVar("Job")
READ_WORKERS = (1, 2, 4, 8)


def checked_count(count: int, *, name: str = "read_workers") -> int:
    """`count` if it is a legal number of threads; raises `ContractError` naming the argument."""
    if type(count) is not int or count not in READ_WORKERS:
        raise ContractError(f"{name} must be 1, 2, 4 or 8, not {count!r}")
    return count


class ReadWorkers:
    """`count` threads, 1, 2, 4 or 8. `run` is serialised: one list of jobs at a time."""

    def __init__(self, count: int) -> None:
        self.count = checked_count(count)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="vflash-read")
        self._one_list = threading.Lock()

    def run(self, jobs: Sequence[Job], work: Callable[[int, Job], None]) -> None:
        """`work(slot, job)` for every job, slot below `count` and never used twice at once.

        When it returns or raises, no job is running. The first exception is raised, jobs not yet begun are dropped.
        """
        with self._one_list:
            if len(jobs) <= 1 or self.count == 1:
                for job in jobs:
                    work(0, job)
                return
            self._run_shared(_SharedJobs(iter(jobs)), work)

    def close(self) -> None:
        self._threads.shutdown(wait=True)

    def _run_shared(self, jobs: _SharedJobs[Job], work: Callable[[int, Job], None]) -> None:
        def drain(slot: int) -> None:
            try:
                for job in jobs:
                    work(slot, job)
            except BaseException:
                jobs.stop()
                raise

        running = [self._threads.submit(drain, slot) for slot in range(self.count)]
        try:
            wait(running)
        finally:
            jobs.stop()
            wait(running)
        for drained in running:
            drained.result()


class _SharedJobs(Iterator[Job]):
    """An iterator that several threads may pull from, and that any of them may stop."""

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._stopped = False

    def __next__(self) -> Job:
        with self._lock:
            if self._stopped:
                raise StopIteration
            return next(self._jobs)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
