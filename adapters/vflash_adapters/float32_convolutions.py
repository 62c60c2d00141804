"""What float32 means for a convolution on CUDA: torch lets cuDNN round operands to TF32 unless it is told not to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def exact_convolutions(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Within, where `dtype` is float32, no operand is rounded to TF32's 10 bits. Another dtype leaves torch's setting
    alone: it is for the modules that stay in float32 beside it. (Matrix products are in float32 by torch's default.)
    """
    if device.type != "cuda" or dtype != torch.float32:
        yield
        return
    cudnn: Any = torch.backends.cudnn
    before = cudnn.conv.fp32_precision
    cudnn.conv.fp32_precision = "ieee"
    try:
        yield
    finally:
        cudnn.conv.fp32_precision = before
