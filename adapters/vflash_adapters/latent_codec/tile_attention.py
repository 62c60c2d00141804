"""Who computes the attention of the video VAE's transformer decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch
import torch.nn.functional as F
from attrs import frozen
from torch.nn.attention import SDPBackend, sdpa_kernel

from vflash_adapters.attention.hopper.admission import DenseAttend, admits, dense_attend
from vflash_adapters.attention.hopper.self_test import check_dense, few_rows
from vflash_adapters.latent_codec.decoder_kernels import TileAttention

TORCH_KERNELS: Mapping[str, Sequence[SDPBackend]] = {
    "cpu": (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH),
    # float32 decoders run where only the last of these takes them
    "cuda": (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION),
}
"""What torch may choose from on a device, the best first."""
TILE_ROWS = 1797
"""Of a whole tile of the released VAE: 7x16x16 tokens, four registers and one zero token."""
WHAT, CURE = "the fused video decoder", "choose video decoder 'diffusers'"


def tile_attention(device: torch.device, dtype: torch.dtype, head_dim: int) -> TileAttention:
    """Our own kernel on compute capability 9.0 for 16-bit heads of 64 or 128, where it was measured faster than
    cuDNN's; torch's elsewhere. Raises `UnsupportedError`, with the cure, where Triton does not fit the former."""
    if admits(device, dtype, head_dim):
        return HopperTileAttention(attend=dense_attend(WHAT, CURE))
    return SdpaTileAttention(kernels=TORCH_KERNELS[device.type])


def check_tile_attention(device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """Raises what `tile_attention` would, and `UnsupportedError` where our kernel does not give a known answer on this
    device, which it is asked once."""
    if isinstance(tile_attention(device, dtype, head_dim), HopperTileAttention):
        _test_once(device, dtype, head_dim)


@cache
def _test_once(device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    rows = few_rows(TILE_ROWS)
    check_dense(
        dense_attend(WHAT, CURE), device, dtype, head_dim, rows, what=WHAT, cure=f"{CURE}, and report the device"
    )


@frozen(kw_only=True)
class SdpaTileAttention:
    """Torch's, by the first of `kernels` that takes the call."""

    kernels: Sequence[SDPBackend]

    def __call__(self, q_BSHD: torch.Tensor, k_BSHD: torch.Tensor, v_BSHD: torch.Tensor) -> torch.Tensor:
        q_BHSD, k_BHSD, v_BHSD = (x.transpose(1, 2) for x in (q_BSHD, k_BSHD, v_BSHD))
        with sdpa_kernel(list(self.kernels), set_priority=True):
            out_BHSD = F.scaled_dot_product_attention(q_BHSD, k_BHSD, v_BHSD)
        # The kernels lay their output out in the order of q's strides, so these are views but for the math kernel's.
        return out_BHSD.transpose(1, 2).flatten(2).flatten(0, 1)


@frozen(kw_only=True)
class HopperTileAttention:
    """The dense kernel for compute capability 9.0."""

    attend: DenseAttend

    def __call__(self, q_BSHD: torch.Tensor, k_BSHD: torch.Tensor, v_BSHD: torch.Tensor) -> torch.Tensor:
        out_BSHD = torch.empty(q_BSHD.shape, dtype=q_BSHD.dtype, device=q_BSHD.device)
        return self.attend(q_BSHD, k_BSHD, v_BSHD, out_BSHD).flatten(2).flatten(0, 1)
