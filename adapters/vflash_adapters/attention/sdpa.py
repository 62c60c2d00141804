"""Torch's scaled dot product attention, one named kernel per backend.

Each backend allows torch exactly the kernels it is named for, so what the receipt says is what ran.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from attrs import field, frozen
from torch.nn.attention import SDPBackend, sdpa_kernel

from vflash_adapters.attention.exact import ExactAttentionFn
from vflash_ports.attention import AttentionLayout
from vflash_ports.errors import UnsupportedError

PROBE_ROWS = 128
IN_PLACE_ROWS = 16_384
"""From this many rows on, a CUDA backend writes its output over q, half the heads at a time: 0.25 GiB less at 38,000
rows of 56 heads, for the same values and, within the noise of the measurement, the same time."""


@frozen(kw_only=True)
class SdpaAttention:
    """One entry of `SDPA_BACKENDS`: `kernels` of torch on `device_type`, for layouts whose dtype is in `dtypes`."""

    name: str
    kernels: tuple[SDPBackend, ...]
    device_type: str
    dtypes: tuple[torch.dtype, ...]
    cure: str
    in_place_rows: int = IN_PLACE_ROWS
    _checked: set[tuple[torch.device, torch.dtype, int, int]] = field(factory=set, init=False, eq=False, repr=False)

    def held_bytes(self, layout: AttentionLayout) -> int:
        self._check(layout)
        return 0

    def prepare(self, layout: AttentionLayout) -> ExactAttentionFn:
        """Raises `UnsupportedError` where the layout's device, dtype or head size cannot run the named kernel."""
        self._check(layout)
        return ExactAttentionFn(backend=self.name, layout=layout, kernel=self._attend)

    def _check(self, layout: AttentionLayout) -> None:
        if layout.device.type != self.device_type:
            raise self._unsupported(f"runs on {self.device_type}, but the model is on {layout.device}")
        if layout.dtype not in self.dtypes:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
            raise self._unsupported(f"takes {known}, but the model is {layout.dtype}")
        self._probe(layout)

    def _attend(self, q_SHD: torch.Tensor, k_SHD: torch.Tensor, v_SHD: torch.Tensor) -> torch.Tensor:
        heads = q_SHD.shape[1]
        if self.device_type == "cpu" or q_SHD.shape[0] < self.in_place_rows or heads % 2:
            return self._attend_whole(q_SHD, k_SHD, v_SHD)
        for half in (slice(heads // 2), slice(heads // 2, heads)):
            q_SHD[:, half] = self._attend_whole(q_SHD[:, half], k_SHD[:, half], v_SHD[:, half])
        return q_SHD

    def _attend_whole(self, q_SHD: torch.Tensor, k_SHD: torch.Tensor, v_SHD: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_SHD, k_SHD, v_SHD))
        with sdpa_kernel(list(self.kernels)):
            out_BHSD = F.scaled_dot_product_attention(q, k, v)
        # The kernels lay their output out in the order of q's strides, so this is a view but for the math kernel.
        return out_BHSD.squeeze(0).transpose(0, 1).contiguous()

    def _probe(self, layout: AttentionLayout) -> None:
        """Torch says only at the call whether a kernel takes a head size on this card: ask it once, before weights."""
        key = (layout.device, layout.dtype, layout.heads, layout.head_dim)
        if key in self._checked:
            return
        shape = (PROBE_ROWS, 3, layout.heads, layout.head_dim)
        q, k, v = torch.zeros(shape, dtype=layout.dtype, device=layout.device).unbind(1)
        with warnings.catch_warnings(record=True) as reasons:
            warnings.simplefilter("always")
            try:
                self._attend(q, k, v)
            except RuntimeError as error:
                why = "; ".join([str(error), *(str(reason.message) for reason in reasons)])
                raise self._unsupported(f"does not run heads of {layout.head_dim} on {layout.device}: {why}") from error
        self._checked.add(key)

    def _unsupported(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"attention backend {self.name!r} {why}; {self.cure}")


_HALF = (torch.bfloat16, torch.float16)

SDPA_BACKENDS: tuple[SdpaAttention, ...] = (
    SdpaAttention(
        name="sdpa",
        kernels=(SDPBackend.FLASH_ATTENTION, SDPBackend.MATH),
        device_type="cpu",
        dtypes=(*_HALF, torch.float32, torch.float64),
        cure="on a CUDA device name 'sdpa-cudnn' or 'sdpa-flash'",
    ),
    SdpaAttention(
        name="sdpa-flash",
        kernels=(SDPBackend.FLASH_ATTENTION,),
        device_type="cuda",
        dtypes=_HALF,
        cure="choose 'sdpa' on a CPU, or 'naive', which runs anywhere",
    ),
    SdpaAttention(
        name="sdpa-cudnn",
        kernels=(SDPBackend.CUDNN_ATTENTION,),
        device_type="cuda",
        dtypes=_HALF,
        cure="choose 'sdpa-flash' on an older CUDA device, 'sdpa' on a CPU, or 'naive', which runs anywhere",
    ),
)


def sdpa_attention(name: str) -> SdpaAttention:
    """The named entry of `SDPA_BACKENDS`."""
    return next(backend for backend in SDPA_BACKENDS if backend.name == name)
