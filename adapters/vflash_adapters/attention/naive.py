"""Attention as the paper writes it: the reference that every other backend is held against."""

from __future__ import annotations

import torch
from attrs import field, frozen

from vflash_adapters.attention.exact import ExactAttentionFn
from vflash_ports.attention import AttentionLayout

SCORE_BYTES = 256 * 2**20


@frozen(kw_only=True)
class NaiveAttention:
    """softmax(q k^T / sqrt(D)) v, one head and a run of query rows at a time, on any device and float dtype.

    Computes in float32 (float64 for float64 inputs). `score_bytes` bounds the score matrix held at once; the rest of
    its memory is one head of k and v in the computing dtype.
    """

    score_bytes: int = SCORE_BYTES
    name: str = field(default="naive", init=False)

    def held_bytes(self, layout: AttentionLayout) -> int:
        return 0

    def prepare(self, layout: AttentionLayout) -> ExactAttentionFn:
        return ExactAttentionFn(backend=self.name, layout=layout, kernel=self._attend)

    def _attend(self, q_SHD: torch.Tensor, k_SHD: torch.Tensor, v_SHD: torch.Tensor) -> torch.Tensor:
        rows, heads, head_dim = q_SHD.shape
        compute = torch.promote_types(q_SHD.dtype, torch.float32)
        chunk = max(1, self.score_bytes // (rows * compute.itemsize))
        out_SHD = torch.empty((rows, heads, head_dim), dtype=q_SHD.dtype, device=q_SHD.device)
        for head in range(heads):
            k_SD, v_SD = k_SHD[:, head].to(compute), v_SHD[:, head].to(compute)
            for start in range(0, rows, chunk):
                q_CD = q_SHD[start : start + chunk, head].to(compute)
                weights_CS = torch.softmax(q_CD @ k_SD.T * head_dim**-0.5, dim=-1)
                out_SHD[start : start + chunk, head] = (weights_CS @ v_SD).to(q_SHD.dtype)
        return out_SHD
