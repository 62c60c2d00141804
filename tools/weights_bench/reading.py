"""Reading one large file into reused buffers, cold and warm, against the usual load and clone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from vflash_adapters.weights.buffered_source import BufferedWeights
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.weights import WeightSource
from weights_bench.timing import evict, interleaved, rates, ratio, warm

WORKERS = (1, 2, 4, 8)


def reading_speed(path: Path, repeats: int) -> dict[str, Any]:
    """`buffered N`: N readers filling the same tensors every time; each chooses direct or cached reads by itself."""
    size = path.stat().st_size
    report = {}
    for state, before in (("cold", partial(evict, path)), ("warm", partial(warm, path))):
        seconds = interleaved(_cases(path), repeats, before)
        best = min((f"buffered {count}" for count in WORKERS), key=lambda name: sorted(seconds[name])[repeats // 2])
        report[state] = {
            "rates": rates(seconds, size),
            "buffered_4_over_load_and_clone": ratio(seconds, "buffered 4", "load_file + clone"),
            "best": best,
            "best_over_load_and_clone": ratio(seconds, best, "load_file + clone"),
        }
    return report


def _cases(path: Path) -> dict[str, Callable[[], None]]:
    out = destination(MmapWeights(path))

    def load_and_clone() -> None:
        owned = {name: tensor.clone() for name, tensor in load_file(path).items()}
        assert len(owned) == len(out)

    cases: dict[str, Callable[[], None]] = {"load_file + clone": load_and_clone}
    for count in WORKERS:
        cases[f"buffered {count}"] = partial(fill, BufferedWeights(path, read_workers=count), out)
    return cases


def destination(source: WeightSource) -> dict[str, torch.Tensor]:
    """Touched tensors of every spec, reused by all."""
    return {name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in source.specs().items()}


def fill(source: WeightSource, out: dict[str, torch.Tensor]) -> None:
    with source.open() as reader:
        for name, tensor in out.items():
            reader.read_into(name, tensor)
