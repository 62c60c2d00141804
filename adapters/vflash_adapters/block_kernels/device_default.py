"""Which block kernels a device runs by default. Triton is imported only where it is chosen."""

from __future__ import annotations

import torch

from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.errors import UnsupportedError


def default_block_kernels(device: torch.device) -> BlockKernels:
    """`auto`: `triton` on CUDA, `torch` elsewhere; the receipt names the one that ran."""
    return triton_block_kernels() if device.type == "cuda" else TorchBlockKernels()


def triton_block_kernels() -> BlockKernels:
    """Raises `UnsupportedError` where Triton is not installed: there is no fallback."""
    try:
        from vflash_adapters.block_kernels.triton_kernels import TritonBlockKernels
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "block kernels 'triton' need Triton: install vflash[gpu], or choose block kernels 'torch'"
        ) from error
    return TritonBlockKernels()
