"""What is measured: trained weights in BF16 and in row-scaled FP8, and one file large enough to time reads."""

from __future__ import annotations

from pathlib import Path

import torch
from attrs import frozen
from safetensors.torch import load_file, save_file

ROWS_MIN = 32 * 1024
LARGE_TENSOR = 64 * 2**20


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
    save_file(_large(bf16, large_bytes), folder / "large.safetensors")
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


def _large(bf16: dict[str, torch.Tensor], byte_count: int) -> dict[str, torch.Tensor]:
    """The same numbers over and over, in matrices of 64 MiB: the model's own are 77 to 308 MB."""
    numbers = torch.cat([tensor.flatten() for tensor in bf16.values()])
    tensors = {}
    for index in range(max(1, byte_count // LARGE_TENSOR)):
        start = index * 7919 * 4096 % len(numbers)
        turned = torch.cat([numbers[start:], numbers[:start]])
        repeats = -(-LARGE_TENSOR // turned.nbytes)
        tensors[f"matrix.{index:03d}"] = turned.repeat(repeats)[: LARGE_TENSOR // 2].view(-1, 4096).clone()
    return tensors


def _row_scaled(matrices: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    stored: dict[str, torch.Tensor] = {}
    for name, matrix in matrices.items():
        scale = matrix.abs().amax(1, keepdim=True).clamp_min(1e-12) / 448
        stored[name] = (matrix / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored[f"{name}_scale"] = scale
    return stored
