"""Processes that judge beside the GPU."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

import torch

PROCESSES = 12


@contextmanager
def judges(device: torch.device) -> Iterator[Executor | None]:
    """Judging is CPU work: beside a GPU it runs in processes of its own; on a CPU there are none."""
    if device.type != "cuda":
        yield None
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=PROCESSES, mp_context=context, initializer=_one_thread) as pool:
        yield pool


def _one_thread() -> None:
    torch.set_num_threads(1)
