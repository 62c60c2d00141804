"""A float32 pipeline on CUDA keeps cuDNN from rounding to TF32, while it computes and no longer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vflash_adapters.float32_convolutions import exact_convolutions

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def precision() -> str:
    cudnn: Any = torch.backends.cudnn
    return str(cudnn.conv.fp32_precision)


@pytest.mark.parametrize(
    ("dtype", "device", "within"),
    [(torch.float32, CUDA, "ieee"), (torch.bfloat16, CUDA, "tf32"), (torch.float32, CPU, "tf32")],
)
def test_only_a_float32_pipeline_on_cuda_asks_for_it(dtype: torch.dtype, device: torch.device, within: str) -> None:
    """Elsewhere torch's own setting stands, which is TF32 unless somebody changed it."""
    assert precision() == "tf32"
    with exact_convolutions(dtype, device):
        assert precision() == within
    assert precision() == "tf32"


def test_the_setting_comes_back_after_an_error() -> None:
    """The process may have other work that wants TF32."""
    with pytest.raises(RuntimeError, match="broke"), exact_convolutions(torch.float32, CUDA):
        raise RuntimeError("broke")
    assert precision() == "tf32"
    assert torch.backends.cudnn.allow_tf32
