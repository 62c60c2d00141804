"""What every training stage shares: a time budget, a log, a state file it can go on from."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from attrs import define, field, frozen
from safetensors import safe_open
from safetensors.torch import save_file

from vflash_adapters.tiny_checkpoint.weights import TRANSFORMER_FLOAT32

State = dict[str, torch.Tensor]
Result = TypeVar("Result")
SAVE_EVERY_S = 30.0


@frozen(kw_only=True)
class Budget:
    """A stage ends after `seconds` or after `steps`, whichever comes first; None does not limit."""

    seconds: float | None = None
    steps: int | None = None


@define(kw_only=True)
class Progress:
    """0 at the start, 1 when the budget is used up or somebody has told so. Schedules are functions of it, so that a
    stage always ends."""

    budget: Budget
    step: int = 0
    told: float = 0.0
    begin: float = field(factory=time.perf_counter)

    @property
    def share(self) -> float:
        shares = [self.told]
        if self.budget.seconds is not None:
            shares.append((time.perf_counter() - self.begin) / max(self.budget.seconds, 1e-9))
        if self.budget.steps is not None:
            shares.append(self.step / max(self.budget.steps, 1))
        return min(1.0, max(shares))

    @property
    def done(self) -> bool:
        return self.share >= 1.0


@define
class SaveClock:
    """`due()` once every `SAVE_EVERY_S`, whatever the budget is; a stage that is cut off loses no more."""

    last: float = field(factory=time.perf_counter)

    def due(self) -> bool:
        now = time.perf_counter()
        if now - self.last < SAVE_EVERY_S:
            return False
        self.last = now
        return True


def learning_rate(peak: float, share: float, step: int, *, warmup: int = 100, decay: float = 0.4) -> float:
    """Linear warm-up by steps, flat, then linear to nothing over the last `decay` of the budget."""
    rising = min(1.0, (step + 1) / warmup)
    falling = min(1.0, (1.0 - share) / decay)
    return peak * min(rising, falling)


@frozen(kw_only=True)
class Log:
    """JSON lines, on disk and on the screen."""

    path: Path
    stage: str

    def write(self, **values: Any) -> None:
        shown = {k: round(v, 5) if isinstance(v, float) and math.isfinite(v) else v for k, v in values.items()}
        line = json.dumps({"stage": self.stage, "at": round(time.time(), 1), **shown})
        with self.path.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)


def guarded(name: str, stage: Callable[[], Result], log: Log) -> Result | None:
    """None, and a line in the log, if it fails: the stages before have saved their work, and it must not be lost."""
    try:
        return stage()
    except Exception:
        log.write(failed=name, error=traceback.format_exc()[-1500:])
        return None


def save_state(path: Path, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any], dtype: torch.dtype) -> None:
    """Atomic. Matrices are stored in `dtype`; vectors, and what the release keeps in float32, stay so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {
        name: tensor.detach()
        .to(tensor.dtype if tensor.ndim < 2 or name.startswith(TRANSFORMER_FLOAT32) else dtype)
        .cpu()
        for name, tensor in tensors.items()
    }
    partial = path.with_suffix(".partial")
    save_file({k: v.contiguous() for k, v in stored.items()}, partial, metadata={"facts": json.dumps(facts)})
    partial.replace(path)


def load_state(path: Path) -> tuple[State, dict[str, Any]]:
    """Tensors as float32 on the CPU, and the facts stored with them."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, a handle is no mapping
        facts = json.loads((file.metadata() or {}).get("facts", "{}"))
    return {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}, facts


def pick_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compute_dtype(device: torch.device) -> torch.dtype:
    """BF16 on the GPU; a CPU is faster, and exact, in float32."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32
