"""Weights that a checkpoint stores in row-scaled FP8: `X.weight` in E4M3 with `X.weight_scale` float32, one an output.

Only matrices of linear layers may be stored so; norms, biases, embeddings and what the model keeps in float32 may not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from vflash_ports.errors import CheckpointError
from vflash_ports.weights import TensorSpec, WeightReader

CODES = torch.float8_e4m3fn
SCALE_SUFFIX = "_scale"


def is_quantised(specs: Mapping[str, TensorSpec], name: str) -> bool:
    return specs[name].dtype == CODES


def scale_names(specs: Mapping[str, TensorSpec]) -> set[str]:
    """Every tensor that is the scale of another."""
    return {name for name in specs if name.endswith(SCALE_SUFFIX) and name.removesuffix(SCALE_SUFFIX) in specs}


def check_stored_fp8(specs: Mapping[str, TensorSpec], never: Collection[str], *, what: str) -> None:
    """Raises `CheckpointError` naming the tensor, unless codes and scales belong together and nothing in `never`
    (module names) is quantised."""
    scales = scale_names(specs)
    for name, spec in specs.items():
        if name in scales:
            if not is_quantised(specs, name.removesuffix(SCALE_SUFFIX)):
                raise CheckpointError(f"{what}: {name} scales a tensor that is not stored in E4M3")
        elif spec.dtype.is_floating_point and spec.dtype.itemsize == 1:
            _check_codes(specs, spec, never, what)


def _check_codes(specs: Mapping[str, TensorSpec], spec: TensorSpec, never: Collection[str], what: str) -> None:
    if spec.dtype != CODES:
        raise CheckpointError(f"{what}: {spec.name} is {spec.dtype}; of the 8-bit floats only E4M3 is read")
    module, _, leaf = spec.name.rpartition(".")
    if leaf != "weight" or len(spec.shape) != 2 or module in never:
        raise CheckpointError(f"{what}: {spec.name} is stored in FP8, but it must keep its precision")
    scale = specs.get(spec.name + SCALE_SUFFIX)
    if scale is None:
        raise CheckpointError(f"{what}: {spec.name} is stored in FP8 without {spec.name}{SCALE_SUFFIX}")
    if scale.dtype != torch.float32 or scale.shape not in ((spec.shape[0], 1), (spec.shape[0],)):
        raise CheckpointError(
            f"{what}: {scale.name} must hold one float32 for each of {spec.shape[0]} rows, "
            f"not {scale.dtype} {list(scale.shape)}"
        )


def read_codes(reader: WeightReader, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [out, in] and scales [out, 1] of one stored weight. `CheckpointError` if a scale is no usable number."""
    scales = reader.get_tensor(name + SCALE_SUFFIX).view(-1, 1)
    if not bool((scales.isfinite() & (scales > 0)).all()):
        raise CheckpointError(f"{name}{SCALE_SUFFIX} holds zero, a negative number, NaN or infinity")
    return reader.get_tensor(name), scales


def read_dense(
    reader: WeightReader, specs: Mapping[str, TensorSpec], name: str, *, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Any stored tensor in `dtype` on `device`; codes are restored in float32 and rounded once.

    In memory of its own, aligned: a view into a mapped file lies wherever the file puts it, and CPU GEMMs round by
    alignment, so two layouts of one model would differ in the last bit.
    """
    if is_quantised(specs, name):
        codes, scales = read_codes(reader, name)
        return (codes.to(device).to(torch.float32) * scales.to(device)).to(dtype)
    stored = reader.get_tensor(name)
    placed = stored.to(device=device, dtype=dtype)
    return placed.clone() if placed.data_ptr() == stored.data_ptr() else placed
