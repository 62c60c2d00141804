"""Measure attention on one CUDA device: exact backends, Veda whole and in parts, errors, kept mass, memory.

`--check` compares every kernel with the torch reference at several shapes and stops at the first difference.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from attention_cases import (
    LARGE,
    LONG,
    MAIN,
    SMALLER,
    Case,
    exact_names,
    random_plan,
    random_projections,
    random_qkv,
    video_like_qkv,
)
from attention_checks import check_all
from attention_errors import exact_errors, measure_errors
from attention_flex import flex_milliseconds
from attention_timing import peak_bytes, timed
from attention_variants import VARIANTS, variant_call
from vflash_adapters.attention.device_default import exact_backend
from vflash_adapters.attention.veda.fast import FastSparseCall
from vflash_adapters.attention.veda.triton_pool import pool_tiles
from vflash_adapters.attention.veda.triton_score import block_logits
from vflash_adapters.attention.veda.triton_select import select_tiles

QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="where to write the JSON")
    parser.add_argument("--check", action="store_true", help="only compare the kernels with the reference")
    parser.add_argument("--quick", action="store_true", help="only 1344x768 5 s")
    parser.add_argument("--exact", action="store_true", help="only the exact backends, timed and compared with float32")
    parser.add_argument("--no-flex", action="store_true", help="leave FlexAttention out, which takes long to compile")
    parser.add_argument("--variant", choices=VARIANTS, default="hopper", help="the attention kernel's configuration")
    parser.add_argument("--keep", type=float, default=0.1, help="ratio of video tile pairs to keep")
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    result: dict[str, Any] = {}
    for _ in measured(args, torch.device("cuda"), result):
        if args.output:
            args.output.write_text(json.dumps(result, indent=1))
    print_tables(result)


def measured(args: argparse.Namespace, device: torch.device, result: dict[str, Any]) -> Iterator[None]:
    """Fills `result`, and stops after each part of it, so that what is there can be kept."""
    result |= {"environment": environment(device), "cases": {}, "errors": {}}
    if not args.exact:
        result |= {"keep": args.keep, "checks": check_all(device)}
        yield
    if args.check:
        return
    calls = partial(variant_call, args.variant, device=device, keep=args.keep)
    for case in [MAIN] if args.quick else [MAIN, *SMALLER, LONG, LARGE]:
        result["cases"][case.name] = bench_case(case, None if args.exact else calls(case=case), device, args.repeats)
        yield
    for kind, inputs in (("random", random_qkv), ("video-like", video_like_qkv)):
        qkv = inputs(MAIN, device)
        result["errors"][kind] = exact_errors(MAIN, qkv, device)
        if not args.exact:
            result["errors"][kind] |= measure_errors(MAIN, qkv, calls(case=MAIN), device)
        yield
    if not (args.no_flex or args.exact):
        result["flex"] = flex_milliseconds(MAIN, device, calls(case=MAIN), args.repeats)
        yield


def bench_case(case: Case, call: FastSparseCall | None, device: torch.device, repeats: int) -> dict[str, Any]:
    """Dense milliseconds of one call at one block, and those of the sparse `call`; the peak bytes with the inputs.

    Every backend may write over q, so q is restored before each measured call.
    """
    torch.cuda.empty_cache()
    q, k, v = random_qkv(case, device)
    restore = partial(q.copy_, q.clone())
    layout = case.layout(device)
    input_bytes = 3 * q.numel() * q.element_size()
    row: dict[str, Any] = {"rows": case.rows}
    for name in exact_names(layout):
        dense = partial(exact_backend(name).prepare(layout), q, k, v, block=0, evaluation=0)
        row[name] = timed(dense, repeats, before=restore)
        row[f"{name} peak"] = input_bytes + peak_bytes(dense)
    if "hopper" in row:
        row["hopper speedup"] = row["sdpa-cudnn"] / row["hopper"]
    if call is not None:
        restore()
        row |= sparse_figures(case, call, (q, k, v), restore, repeats)
        row["speedup"] = row["sdpa-cudnn"] / row["veda"]
        row["memory"] = row["veda peak"] / row["sdpa-cudnn peak"]
    return row


def sparse_figures(
    case: Case, call: FastSparseCall, qkv: QKV, restore: Callable[[], object], repeats: int
) -> dict[str, Any]:
    q, k, v = qkv
    head_shape = torch.tensor(random_plan(case).head_shape[0], dtype=torch.int32, device=q.device)
    projections = random_projections(case, q.device)
    whole = partial(call, q, k, v, projections=projections, head_shape=head_shape)
    row: dict[str, Any] = {"veda": timed(whole, repeats, before=restore)}
    row["veda peak"] = 3 * q.numel() * q.element_size() + peak_bytes(whole) + kept_bytes(call)
    restore()
    row["parts"] = parts(call, qkv, projections, head_shape, repeats)
    attend = partial(call.attend, q, k, v, call.kept, tiling=call.tiling, head_shape=head_shape, config=call.config)
    row["parts"]["attend"] = timed(attend, repeats, before=restore)
    return row


def parts(call: FastSparseCall, qkv: QKV, projections: Any, head_shape: torch.Tensor, repeats: int) -> dict[str, float]:
    q, k, _ = qkv
    features = pool_tiles(q, k, call.tiling, head_shape)
    logits = block_logits(features, projections)
    steps: Mapping[str, Callable[[], object]] = {
        "pool": lambda: pool_tiles(q, k, call.tiling, head_shape),
        "score": lambda: block_logits(features, projections),
        "select": lambda: select_tiles(logits, call.tiling, head_shape, call.kept, call.pairs),
    }
    return {name: timed(step, repeats, inner=5) for name, step in steps.items()}


def kept_bytes(call: FastSparseCall) -> int:
    tables = (call.kept.lists, call.kept.items, call.tiling.rows, call.tiling.valid, call.tiling.keep)
    return sum(table.numel() * table.element_size() for table in tables)


def environment(device: torch.device) -> dict[str, str]:
    return {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def print_tables(result: Mapping[str, Any]) -> None:
    print(json.dumps(result["environment"]), json.dumps(result.get("checks")))
    if "flex" in result:
        print("flex attention on the same tiles:", json.dumps(result["flex"]))
    for kind, errors in result["errors"].items():
        print(f"errors, {kind}:", json.dumps(errors))
    if result["cases"]:
        print("case            rows   cudnn   flash  hopper    veda  speed  mem |  pool score select attend")
    for name, row in result["cases"].items():
        exact = " ".join(f"{row.get(backend, math.nan):7.2f}" for backend in ("sdpa-cudnn", "sdpa-flash", "hopper"))
        print(f"{name:14s} {row['rows']:6d} {exact} {sparse_columns(row) if 'veda' in row else ''}")
    sys.stdout.flush()


def sparse_columns(row: Mapping[str, Any]) -> str:
    p = row["parts"]
    return (
        f"{row['veda']:7.2f} {row['speedup']:6.2f} {row['memory']:4.2f} | {p['pool']:5.2f} {p['score']:5.2f} "
        f"{p['select']:6.2f} {p['attend']:6.2f}"
    )


if __name__ == "__main__":
    main()
