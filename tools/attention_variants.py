"""Check and time the configurations of Veda's attention kernels on the main case; the last line names the fastest."""

from __future__ import annotations

from functools import partial

import torch

from attention_cases import MAIN, Case, random_plan, random_projections, random_qkv
from attention_checks import CHECKED, check_case
from attention_timing import timed
from vflash_adapters.attention.veda import hopper_attend, triton_attend
from vflash_adapters.attention.veda.budget import Budget, BudgetKind
from vflash_adapters.attention.veda.fast import FastSparseCall, prepare_call
from vflash_adapters.attention.veda.hopper_attend import HopperConfig
from vflash_adapters.attention.veda.tiling import Tiling, build_tiling, tiled_spans
from vflash_adapters.attention.veda.triton_attend import AttendConfig
from vflash_ports.attention import AttentionLayout

VARIANTS: dict[str, HopperConfig | AttendConfig] = {
    "hopper": HopperConfig(),
    "hopper-3-keys": HopperConfig(k_slots=3, v_slots=2),
    "hopper-2-and-2": HopperConfig(v_slots=2),
    "triton": AttendConfig(),
}


def main() -> None:
    device = torch.device("cuda")
    milliseconds: dict[str, float] = {}
    for name in VARIANTS:
        errors = [
            check_case(case, device, partial(prepared, name))["attend"] for case in CHECKED if case.head_dim == 128
        ]
        spread, packed = attend_milliseconds(variant_call(name, MAIN, device, 0.1), MAIN, device)
        milliseconds[name] = spread
        print(f"{name:16s} {spread:6.2f} ms, heads contiguous {packed:6.2f} ms, error {max(errors):.2e}", flush=True)
    print(min(milliseconds, key=lambda name: milliseconds[name]))


def variant_call(name: str, case: Case, device: torch.device, keep: float) -> FastSparseCall:
    layout = case.layout(device)
    budget = Budget(kind=BudgetKind.RATIO, value=keep)
    tiling = build_tiling(tiled_spans(layout, tile_conditions=False), random_plan(case), budget, None, device)
    return prepared(name, tiling, layout)


def prepared(name: str, tiling: Tiling, layout: AttentionLayout) -> FastSparseCall:
    config = VARIANTS[name]
    attend = hopper_attend.attend_kept if isinstance(config, HopperConfig) else triton_attend.attend_kept
    return prepare_call(name, tiling, layout, attend, config)


def attend_milliseconds(call: FastSparseCall, case: Case, device: torch.device) -> tuple[float, float]:
    """Of the attention kernel alone: on rows as the model lays them out, and with each head's rows side by side."""
    q, k, v = random_qkv(case, device)
    head_shape = torch.tensor(random_plan(case).head_shape[0], dtype=torch.int32, device=device)
    call(q.clone(), k, v, projections=random_projections(case, device), head_shape=head_shape)

    def attend(*qkv: torch.Tensor) -> torch.Tensor:
        return call.attend(*qkv, call.kept, tiling=call.tiling, head_shape=head_shape, config=call.config)

    packed = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v)]
    restore, restore_packed = partial(q.copy_, q.clone()), partial(packed[0].copy_, packed[0].clone())
    return timed(lambda: attend(q, k, v), 10, before=restore), timed(lambda: attend(*packed), 10, before=restore_packed)


if __name__ == "__main__":
    main()
