"""A module that runs a row-scaled FP8 weight in the place of an `nn.Linear`."""

from __future__ import annotations

import torch
from torch import nn

from vflash_adapters.linear.row_fp8 import RowFP8Execution, check_weight
from vflash_ports.errors import ContractError


class RowFP8Linear(nn.Module):
    """Stands in for `source`: same sizes, the same bias object; weight and scale begin on meta and must be filled.

    Buffers: `weight` [out, in] float8_e4m3fn and `weight_scale` [out, 1] float32, filled by `fill` or by
    `load_state_dict(..., assign=True)`. Move it with `.to(device)`; a dtype conversion would destroy the codes and is
    refused at the next call. `ContractError` when run unfilled.
    """

    weight: torch.Tensor
    weight_scale: torch.Tensor

    def __init__(self, source: nn.Linear, execution: RowFP8Execution) -> None:
        super().__init__()
        if not isinstance(source, nn.Linear):
            raise ContractError(f"source: expected a torch.nn.Linear, got a {type(source).__name__}")
        if not isinstance(execution, RowFP8Execution):
            raise ContractError(f"execution: expected a RowFP8Execution, got a {type(execution).__name__}")
        self.in_features, self.out_features = source.in_features, source.out_features
        self.execution = execution
        shape = (self.out_features, self.in_features)
        self.register_buffer("weight", torch.empty(shape, dtype=torch.float8_e4m3fn, device="meta"))
        self.register_buffer("weight_scale", torch.empty(shape[0], 1, dtype=torch.float32, device="meta"))
        self.bias = source.bias

    def fill(self, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """Take over `codes` [out, in] and `scales` [out, 1], without a copy."""
        check_weight(codes, scales)
        assert codes.shape == self.weight.shape, f"codes {tuple(codes.shape)} for a {tuple(self.weight.shape)} layer"
        self.weight, self.weight_scale = codes, scales

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out], as `RowFP8Execution.linear` says."""
        bias = None if self.bias is None else self.bias.to(values.dtype)
        return self.execution.linear(values, self.weight, self.weight_scale, bias)
