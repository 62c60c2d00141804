"""Where the kernels for compute capability 9.0 run, and the dense one's import, which waits until then."""

from __future__ import annotations

from typing import Protocol

import torch

from vflash_ports.errors import UnsupportedError

CAPABILITY = (9, 0)
DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128)
LEAST_TRITON = (3, 6)
"""The first release with the Gluon that the kernels are written in."""


class DenseAttend(Protocol):
    """`dense.attend` in its fastest configuration: q, k, v, out [B, S, H, D] -> out."""

    def __call__(
        self, q_BSHD: torch.Tensor, k_BSHD: torch.Tensor, v_BSHD: torch.Tensor, out_BSHD: torch.Tensor
    ) -> torch.Tensor: ...


def admits(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """By hardware and sizes alone."""
    if device.type != "cuda" or dtype not in DTYPES or head_dim not in HEAD_DIMS:
        return False
    return torch.cuda.get_device_capability(device) == CAPABILITY


def dense_attend(what: str, cure: str) -> DenseAttend:
    """Raises what `require_gluon` does."""
    require_gluon(what, cure)
    from vflash_adapters.attention.hopper.dense import attend

    return attend


def require_gluon(what: str, cure: str) -> None:
    """Raises `UnsupportedError` for `what`, with its `cure`, where Triton is missing or too old."""
    needed = f"{what} needs Triton {'.'.join(map(str, LEAST_TRITON))} or later on compute capability 9.0"
    try:
        import triton
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"{needed}: install vflash[gpu], or {cure}") from error
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < LEAST_TRITON:
        raise UnsupportedError(f"{needed}, not {triton.__version__}: install vflash[gpu], or {cure}")
