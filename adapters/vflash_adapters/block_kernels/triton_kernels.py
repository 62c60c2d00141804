"""The memory-bound stages as Triton kernels, one pass each; imports Triton."""

from __future__ import annotations

import torch
import triton

from vflash_adapters.block_kernels.triton_gate_residual import launch_gate_residual
from vflash_adapters.block_kernels.triton_norm_modulate import launch_norm_modulate
from vflash_adapters.block_kernels.triton_qk_norm_rope import launch_qk_norm_rope
from vflash_adapters.block_kernels.triton_swiglu import launch_swiglu
from vflash_adapters.linear.triton_rows import empty_rows, require_rows, warps_for
from vflash_ports.errors import UnsupportedError
from vflash_ports.linear import ActivationFormat, Fp8Rows

_NAME = "block kernels 'triton'"


class TritonBlockKernels:
    """`triton`: CUDA only. Rounds where the torch reference rounds; rows may be strided, columns are contiguous."""

    name = "triton"

    def check(self, device: torch.device, dtype: torch.dtype) -> None:
        """CUDA, or Triton's interpreter."""
        if device.type != "cuda" and not triton.knobs.runtime.interpret:
            raise UnsupportedError(f"{_NAME} run on CUDA, not on {device}: choose block kernels 'torch'")

    def norm_modulate(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        shift: torch.Tensor,
        scale: torch.Tensor,
        rows: torch.Tensor,
        *,
        eps: float,
        emit: ActivationFormat,
    ) -> torch.Tensor | Fp8Rows:
        """See `BlockKernels.norm_modulate`."""
        require_rows(_NAME, x, shift, scale)
        out, scales, result = _output(x.shape[0], x.shape[1], x, emit)
        warps = max(1, triton.next_power_of_2(x.shape[1]) // 2048)
        launch_norm_modulate(x, weight, shift, scale, rows.contiguous(), out, scales, eps=eps, num_warps=warps)
        return result

    def qk_norm_rope(
        self,
        qkv: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *,
        heads: int,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `BlockKernels.qk_norm_rope`. q and k are written over their thirds of `qkv`; all three are its views."""
        require_rows(_NAME, qkv, cos, sin)
        launch_qk_norm_rope(qkv, q_weight, k_weight, cos, sin, heads=heads, eps=eps, block=16, num_warps=2)
        q_SHD, k_SHD, v_SHD = qkv.unflatten(1, (3, heads, -1)).unbind(1)
        return q_SHD, k_SHD, v_SHD

    def gate_residual(
        self, x: torch.Tensor, update: torch.Tensor, gate: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """See `BlockKernels.gate_residual`."""
        require_rows(_NAME, x, update, gate)
        launch_gate_residual(x, update, gate, rows.contiguous(), block=2048, num_warps=8)
        return x

    def swiglu(
        self,
        packed: torch.Tensor,
        *,
        emit: ActivationFormat,
        residual: torch.Tensor | None = None,
        residual_scale: torch.Tensor | None = None,
    ) -> torch.Tensor | Fp8Rows:
        """See `BlockKernels.swiglu`."""
        require_rows(_NAME, packed, *(() if residual is None else (residual,)))
        width = packed.shape[1] // 2
        out, scales, result = _output(packed.shape[0], width, packed, emit)
        block = min(2048, triton.next_power_of_2(width)) if scales is None else triton.next_power_of_2(width)
        warps = 4 if scales is None else 2 * warps_for(block)
        launch_swiglu(packed, residual, residual_scale, out, scales, block=block, num_warps=warps)
        return result


def _output(
    rows: int, width: int, like: torch.Tensor, emit: ActivationFormat
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | Fp8Rows]:
    """(values or codes to write, scales to write or None, what to return)."""
    if emit is ActivationFormat.DENSE:
        out = torch.empty(rows, width, dtype=like.dtype, device=like.device)
        return out, None, out
    if like.device.type == "cuda" and torch.cuda.get_device_capability(like.device) < (8, 9):
        raise UnsupportedError(f"{_NAME} emit E4M3 from compute capability 8.9 on; {like.device} is older: use bf16")
    fp8 = empty_rows(rows, width, like.device)
    return fp8.codes, fp8.scales, fp8
