"""What is measured: trained weights in BF16 and in row-scaled FP8, and one file large enough to time reads."""

from __future__ import annotations

from pathlib import Path

import torch
from attrs import frozen
from safetensors.torch import load_file, save_file

ROWS_MIN = 32 * 1024


@frozen(kw_only=True)
class Material:
    """Files of one bench run. `kind` says where the numbers come from."""

    kind: str
    bf16: Path
    fp8: Path
    large: Path


def prepare_material(trained: Path | None, folder: Path, large_bytes: int) -> Material:
    """`trained`: a safetensors file of trained float matrices; without it, normal numbers of deviation 0.02."""
    matrices = _trained(trained) if trained else _synthetic()
    bf16 = {name: matrix.bfloat16() for name, matrix in matrices.items()}
    save_file(bf16, folder / "bf16.safetensors")
    save_file(_row_scaled(matrices), folder / "fp8.safetensors")
    size = sum(tensor.nbytes for tensor in bf16.values())
    copies = max(1, round(large_bytes / size))
    repeated = {f"{copy:03d}.{name}": tensor.clone() for copy in range(copies) for name, tensor in bf16.items()}
    save_file(repeated, folder / "large.safetensors")
    return Material(
        kind=f"trained ({trained.name})" if trained else "synthetic, N(0, 0.02)",
        bf16=folder / "bf16.safetensors",
        fp8=folder / "fp8.safetensors",
        large=folder / "large.safetensors",
    )


def _trained(path: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor.float()
        for name, tensor in load_file(path).items()
        if tensor.dim() == 2 and tensor.is_floating_point() and tensor.numel() >= ROWS_MIN
    }


def _synthetic() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"layer.{i}": torch.randn(2048, 1024, generator=generator) * 0.02 for i in range(12)}


def _row_scaled(matrices: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    stored: dict[str, torch.Tensor] = {}
    for name, matrix in matrices.items():
        scale = matrix.abs().amax(1, keepdim=True).clamp_min(1e-12) / 448
        stored[name] = (matrix / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored[f"{name}_scale"] = scale
    return stored
