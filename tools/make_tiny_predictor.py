"""Write a small random Veda predictor in the published format, for tests and demonstrations."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

MENU = ("8x4x4", "2x8x8", "4x4x8", "4x8x4", "8x2x8", "8x8x2")
E4M3_MAX = 448.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--grid", type=int, nargs=3, action="append", metavar=("T", "H", "W"))
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float8_e4m3fn"), default="float8_e4m3fn")
    parser.add_argument("--keep-ratio", type=float, default=0.1)
    parser.add_argument("--scale", type=float, default=1e-2, help="standard deviation of the random projections")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write_predictor(
        args.output,
        blocks=args.blocks,
        heads=args.heads,
        head_dim=args.head_dim,
        grids=[tuple(grid) for grid in args.grid or [(37, 24, 42)]],
        dtype=args.dtype,
        budget={"keep_ratio": repr(args.keep_ratio)},
        scale=args.scale,
        seed=args.seed,
    )


def write_predictor(
    path: Path,
    *,
    blocks: int,
    heads: int,
    head_dim: int,
    grids: Sequence[Sequence[int]],
    dtype: str = "float8_e4m3fn",
    budget: Mapping[str, str] | None = None,
    scale: float = 1e-2,
    seed: int = 0,
    shapes: Sequence[str] = MENU,
) -> None:
    """Random projections N(0, `scale`^2); per grid a plan with two shapes a block; `budget` goes to the metadata."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for block in range(blocks):
        for side in ("proj_q", "proj_k"):
            weight = torch.randn(heads, 3 * head_dim, head_dim, generator=generator) * scale
            tensors |= _stored(f"layers.{block}.{side}", weight, dtype)
    plans = {f"tiny_t{grid[0]}_{grid[1]}x{grid[2]}": _plan(grid, shapes, blocks, heads, generator) for grid in grids}
    metadata = {
        "format": "miowtion-veda-predictor-v1",
        "num_layers": str(blocks),
        "num_heads": str(heads),
        "head_dim": str(head_dim),
        "dtype": dtype,
        "step": "0",
        "source": "random",
        "source_weights": "live",
        "plans": json.dumps(plans),
        **(budget or {"keep_ratio": "0.1"}),
    }
    save_file(tensors, str(path), metadata=metadata)


def _stored(name: str, weight: torch.Tensor, dtype: str) -> dict[str, torch.Tensor]:
    if dtype != "float8_e4m3fn":
        return {name: weight.to(getattr(torch, dtype)).contiguous()}
    tiny = torch.finfo(torch.float32).tiny
    scales = (weight.abs().amax(dim=(1, 2)) / E4M3_MAX).clamp_min(tiny)
    codes = (weight / scales[:, None, None]).to(torch.float8_e4m3fn)
    return {name: codes, f"{name}.__scale": scales}


def _plan(
    grid: Sequence[int], shapes: Sequence[str], blocks: int, heads: int, generator: torch.Generator
) -> dict[str, object]:
    head_shape = []
    for _ in range(blocks):
        pair = torch.randperm(len(shapes), generator=generator)[:2]
        pick = torch.randint(len(pair), (heads,), generator=generator)
        head_shape.append(pair[pick].tolist())
    return {"geometry": "random", "grid": list(grid), "shapes": list(shapes), "head_shape": head_shape}


if __name__ == "__main__":
    main()
