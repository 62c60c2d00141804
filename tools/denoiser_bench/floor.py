"""What no block can beat: its four GEMMs and the best dense attention, timed in the same run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from attrs import frozen

from denoiser_bench.case import RawBlock, Sizes
from denoiser_bench.timing import milliseconds
from vflash_adapters.attention.sdpa import sdpa_attention
from vflash_adapters.linear.row_quantiser import quantise_rows
from vflash_ports.attention import AttentionFn, AttentionLayout
from vflash_ports.linear import PackedLinear


@frozen(kw_only=True)
class Floor:
    """Milliseconds by part at one sequence length."""

    bf16: Mapping[str, float]
    fp8: Mapping[str, float]
    fp8_fast: Mapping[str, float]
    attention: Mapping[str, float]

    def best_attention(self) -> str:
        return min(self.attention, key=lambda name: self.attention[name])

    def total(self, gemms: Mapping[str, float]) -> float:
        return sum(gemms.values()) + self.attention[self.best_attention()]


def measure_floor(
    rows: int, sizes: Sizes, block: RawBlock, packed: Mapping[str, PackedLinear], device: torch.device
) -> Floor:
    """Contiguous random inputs, outputs thrown away; seven samples a part."""
    bf16: dict[str, float] = {}
    fp8: dict[str, float] = {}
    fast: dict[str, float] = {}
    for name, weight in block.linears.items():
        values = torch.randn(rows, weight.shape[1], dtype=torch.bfloat16, device=device)
        bf16[name] = milliseconds(partial(F.linear, values, weight), device)
        quantised, stored = quantise_rows(values), packed[name]
        assert stored.scales is not None
        scaled = partial(
            torch._scaled_mm,
            quantised.codes,
            stored.weight.t(),
            scale_a=quantised.scales,
            scale_b=stored.scales.t(),
            out_dtype=torch.bfloat16,
        )
        fp8[name] = milliseconds(partial(scaled, use_fast_accum=False), device)
        fast[name] = milliseconds(partial(scaled, use_fast_accum=True), device)
    return Floor(bf16=bf16, fp8=fp8, fp8_fast=fast, attention=_attention(rows, sizes, device))


def exact_attention(name: str, rows: int, sizes: Sizes, device: torch.device) -> AttentionFn:
    """A named exact backend, prepared for one packed sequence."""
    return sdpa_attention(name).prepare(
        AttentionLayout(
            segments=(),
            rows=rows,
            heads=sizes.heads,
            head_dim=sizes.head_dim,
            blocks=1,
            evaluations=1,
            device=device,
            dtype=torch.bfloat16,
        )
    )


def attention_names(device: torch.device) -> tuple[str, ...]:
    return ("sdpa-cudnn", "sdpa-flash") if device.type == "cuda" else ("sdpa",)


def _attention(rows: int, sizes: Sizes, device: torch.device) -> dict[str, float]:
    shape = (rows, sizes.heads, sizes.head_dim)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(3))
    times = {}
    for name in attention_names(device):
        attend = exact_attention(name, rows, sizes, device)
        times[name] = milliseconds(partial(attend, q, k, v, block=0, evaluation=0), device, repeats=5)
    return times
