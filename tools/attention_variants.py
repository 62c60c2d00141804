"""Check and time the configurations of the attention kernels, each in a process of its own that may be given up."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import torch

from attention_cases import MAIN, Case, random_plan, random_projections, random_qkv
from attention_checks import CHECKED, check_case
from attention_timing import timed
from vflash_adapters.attention.veda import hopper_attend, triton_attend
from vflash_adapters.attention.veda.budget import Budget, BudgetKind
from vflash_adapters.attention.veda.fast import FastSparseCall, prepare_call
from vflash_adapters.attention.veda.hopper_attend import HopperConfig
from vflash_adapters.attention.veda.tiling import build_tiling, tiled_spans
from vflash_adapters.attention.veda.triton_attend import AttendConfig

VARIANTS: dict[str, HopperConfig | AttendConfig] = {
    "hopper": HopperConfig(),
    "hopper, no fence": HopperConfig(fence=False),
    "hopper, 216 registers": HopperConfig(consumer_registers=216, producer_registers=80),
    "triton 128x8, 4 stages": AttendConfig(),
    "triton 128x8, 5 stages": AttendConfig(stages=5),
}
SECONDS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", choices=VARIANTS)
    args = parser.parse_args()
    if args.variant:
        print(json.dumps(measure(VARIANTS[args.variant], MAIN, torch.device("cuda"))))
        return
    for name in VARIANTS:
        print(name, json.dumps(in_a_process(name)), flush=True)


def measure(config: HopperConfig | AttendConfig, case: Case, device: torch.device, keep: float = 0.1) -> dict[str, Any]:
    """Errors on the small cases, and milliseconds of the attention kernel on `case`."""
    attend = hopper_attend.attend_kept if isinstance(config, HopperConfig) else triton_attend.attend_kept
    errors = {
        small.name: check_case(small, device, lambda tiling, layout: prepare_call("", tiling, layout, attend, config))
        for small in CHECKED
        if small.head_dim == 128
    }
    layout = case.layout(device)
    budget = Budget(kind=BudgetKind.RATIO, value=keep)
    tiling = build_tiling(tiled_spans(layout, tile_conditions=False), random_plan(case), budget, None, device)
    call = prepare_call("", tiling, layout, attend, config)
    return {"attend ms": attend_milliseconds(call, case, device), "errors": errors}


def attend_milliseconds(call: FastSparseCall, case: Case, device: torch.device) -> float:
    q, k, v = random_qkv(case, device)
    head_shape = torch.tensor(random_plan(case).head_shape[0], dtype=torch.int32, device=device)
    call(q, k, v, projections=random_projections(case, device), head_shape=head_shape)
    step = lambda: call.attend(  # noqa: E731
        q, k, v, call.kept, tiling=call.tiling, head_shape=head_shape, config=call.config
    )
    return timed(step, 10)


def in_a_process(name: str) -> dict[str, Any]:
    """A kernel that never ends costs `SECONDS`, not the run."""
    command = [sys.executable, __file__, "--variant", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"no end within {SECONDS} s"}
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-3:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
