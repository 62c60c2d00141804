"""The dense kernel for compute capability 9.0 as an exact backend."""

from __future__ import annotations

from functools import partial

import torch
from attrs import field, frozen

from vflash_adapters.attention.exact import ExactAttentionFn
from vflash_adapters.attention.hopper.admission import DenseAttend, dense_attend, misfit
from vflash_adapters.attention.hopper.row_strides import check_rows
from vflash_adapters.attention.hopper.self_test import check_dense, few_rows
from vflash_ports.attention import AttentionLayout
from vflash_ports.errors import UnsupportedError

WHAT = "attention backend 'hopper'"
CURE = "choose 'sdpa-cudnn' or 'sdpa-flash', on a CPU 'sdpa', or 'naive', which runs anywhere"


@frozen(kw_only=True)
class HopperAttention:
    """`hopper`: 16-bit heads of 64 or 128 on compute capability 9.0, with Triton's Gluon. Writes over q."""

    name: str = field(default="hopper", init=False)
    _tested: set[tuple[torch.device, torch.dtype, int, int]] = field(factory=set, init=False, eq=False, repr=False)

    def held_bytes(self, layout: AttentionLayout) -> int:
        self._tested_kernel(layout)
        return 0

    def prepare(self, layout: AttentionLayout) -> ExactAttentionFn:
        """Raises `UnsupportedError` where the kernel cannot run or fails its self-test; a call raises `ContractError`
        for tensors that the copy engine cannot read."""
        kernel = partial(attend_rows, self._tested_kernel(layout))
        return ExactAttentionFn(backend=self.name, layout=layout, kernel=kernel)

    def _tested_kernel(self, layout: AttentionLayout) -> DenseAttend:
        why = misfit(layout.device, layout.dtype, layout.head_dim)
        if why is not None:
            raise UnsupportedError(f"{WHAT} {why}; {CURE}")
        attend = dense_attend(WHAT, CURE)
        key = (layout.device, layout.dtype, layout.head_dim, few_rows(layout.rows))
        if key not in self._tested:
            check_dense(attend, *key, what=WHAT, cure=f"{CURE}, and report the device")
            self._tested.add(key)
        return attend


def attend_rows(attend: DenseAttend, q_SHD: torch.Tensor, k_SHD: torch.Tensor, v_SHD: torch.Tensor) -> torch.Tensor:
    """One packed sequence through `attend`, over q; raises `ContractError` where a tensor does not lie as the kernel
    reads."""
    check_rows(WHAT, CURE, heads_beside=True, q=q_SHD, k=k_SHD, v=v_SHD)
    q_1SHD = q_SHD.unsqueeze(0)
    attend(q_1SHD, k_SHD.unsqueeze(0), v_SHD.unsqueeze(0), q_1SHD)
    return q_SHD
