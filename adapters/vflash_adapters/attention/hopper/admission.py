"""Where the kernels for compute capability 9.0 run, and the dense one's import, which waits until then."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
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
    return misfit(device, dtype, head_dim) is None


def misfit(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """What the kernel is not made for; None exactly where it `admits`."""
    if device.type != "cuda":
        return f"runs on cuda, but the model is on {device}"
    if dtype not in DTYPES:
        known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        return f"takes {known}, but the model is {dtype}"
    if head_dim not in HEAD_DIMS:
        return f"takes heads of {' or '.join(map(str, HEAD_DIMS))}, but the model has heads of {head_dim}"
    capability = torch.cuda.get_device_capability(device)
    if capability != CAPABILITY:
        return f"runs on compute capability {_dotted(CAPABILITY)}, but {device} has {_dotted(capability)}"
    return None


def dense_attend(what: str, cure: str) -> DenseAttend:
    """Raises what `gluon_kernel` does."""
    with gluon_kernel(what, cure):
        from vflash_adapters.attention.hopper.dense import attend
    return attend


@contextmanager
def gluon_kernel(what: str, cure: str) -> Iterator[None]:
    """To import the kernel of `what` in. Raises `UnsupportedError`, with its `cure`, where Triton is missing, too old,
    or so new that its Gluon no longer has the names that the kernel is written in."""
    needed = f"{what} needs Triton {_dotted(LEAST_TRITON)} or later on compute capability {_dotted(CAPABILITY)}"
    try:
        import triton
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"{needed}: install vflash[gpu], or {cure}") from error
    if _release(triton.__version__) < LEAST_TRITON:
        raise UnsupportedError(f"{needed}, not {triton.__version__}: install vflash[gpu], or {cure}")
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"{what} does not load with Triton {triton.__version__} ({error}): install Triton {_dotted(LEAST_TRITON)}, "
            f"or {cure}"
        ) from error


def _release(version: str) -> tuple[int, ...]:
    """Its first two numbers: (3, 6) of "3.6rc1"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
