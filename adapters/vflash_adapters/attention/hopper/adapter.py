"""The dense kernel for compute capability 9.0 as an exact backend."""

from __future__ import annotations

from functools import partial

import torch
from attrs import field, frozen

from vflash_adapters.attention.exact import ExactAttentionFn
from vflash_adapters.attention.hopper.admission import CAPABILITY, DTYPES, HEAD_DIMS, DenseAttend, dense_attend
from vflash_adapters.attention.hopper.self_test import check_dense, few_rows
from vflash_ports.attention import AttentionLayout
from vflash_ports.errors import ContractError, UnsupportedError

CURE = "choose 'sdpa-cudnn' or 'sdpa-flash', on a CPU 'sdpa'"
ALIGNMENT = 16
"""Bytes that addresses and strides are multiples of, for the copy engine."""


@frozen(kw_only=True)
class HopperAttention:
    """`hopper`: 16-bit heads of 64 or 128 on compute capability 9.0, with Triton's Gluon.

    Writes over q; with `in_place` false into a new tensor, for measurements that need the same q again.
    """

    in_place: bool = True
    name: str = field(default="hopper", init=False)
    _tested: set[tuple[torch.device, torch.dtype, int, int]] = field(factory=set, init=False, eq=False, repr=False)

    def held_bytes(self, layout: AttentionLayout) -> int:
        self._tested_kernel(layout)
        return 0

    def prepare(self, layout: AttentionLayout) -> ExactAttentionFn:
        """Raises `UnsupportedError` where the kernel cannot run or fails its self-test; a call raises `ContractError`
        for tensors that the copy engine cannot read."""
        kernel = partial(attend_rows, self._tested_kernel(layout), in_place=self.in_place)
        return ExactAttentionFn(backend=self.name, layout=layout, kernel=kernel)

    def _tested_kernel(self, layout: AttentionLayout) -> DenseAttend:
        why = misfit(layout)
        if why is not None:
            raise UnsupportedError(f"attention backend {self.name!r} {why}; {CURE}")
        attend = dense_attend(f"attention backend {self.name!r}", CURE)
        key = (layout.device, layout.dtype, layout.head_dim, few_rows(layout.rows))
        if key not in self._tested:
            check_dense(attend, *key, what=f"attention backend {self.name!r}", cure=f"{CURE}, and report the device")
            self._tested.add(key)
        return attend


def misfit(layout: AttentionLayout) -> str | None:
    """What of the layout the kernel is not made for; None exactly where `admits` holds."""
    if layout.device.type != "cuda":
        return f"runs on cuda, but the model is on {layout.device}"
    capability = torch.cuda.get_device_capability(layout.device)
    if capability != CAPABILITY:
        return f"runs on compute capability {_dotted(CAPABILITY)}, but {layout.device} has {_dotted(capability)}"
    if layout.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        return f"takes {known}, but the model is {layout.dtype}"
    if layout.head_dim not in HEAD_DIMS:
        return f"takes heads of {' or '.join(map(str, HEAD_DIMS))}, but the model has heads of {layout.head_dim}"
    return None


def attend_rows(
    attend: DenseAttend, q_SHD: torch.Tensor, k_SHD: torch.Tensor, v_SHD: torch.Tensor, *, in_place: bool
) -> torch.Tensor:
    """One packed sequence through `attend`; raises `ContractError` where a tensor does not lie as the kernel reads."""
    for name, x_SHD in (("q", q_SHD), ("k", k_SHD), ("v", v_SHD)):
        _check_rows(name, x_SHD)
    out_SHD = q_SHD if in_place else q_SHD.new_empty(q_SHD.shape)
    attend(q_SHD.unsqueeze(0), k_SHD.unsqueeze(0), v_SHD.unsqueeze(0), out_SHD.unsqueeze(0))
    return out_SHD


def _check_rows(name: str, x_SHD: torch.Tensor) -> None:
    row_stride, *within = x_SHD.stride()
    beside = within == [x_SHD.shape[2], 1]
    if not beside or row_stride * x_SHD.element_size() % ALIGNMENT or x_SHD.data_ptr() % ALIGNMENT:
        raise ContractError(
            f"attention backend 'hopper' reads rows whose heads lie side by side, at multiples of {ALIGNMENT} bytes, "
            f"but {name} {tuple(x_SHD.shape)} has strides {x_SHD.stride()} and starts {x_SHD.data_ptr() % ALIGNMENT} "
            f"bytes off; make it contiguous, or {CURE}"
        )


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
