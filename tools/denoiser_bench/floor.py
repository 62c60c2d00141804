"""What no block can beat: its four GEMMs and the fastest exact attention of the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from attrs import evolve

from attention_cases import exact_names
from denoiser_bench.case import RawBlock, Sizes
from vflash_adapters.attention.device_default import default_backend, exact_backend
from vflash_adapters.attention.exact import ExactAttentionFn
from vflash_adapters.attention.sdpa import SdpaAttention
from vflash_adapters.linear.row_quantiser import quantise_rows
from vflash_ports.attention import Attention, AttentionFn, AttentionLayout
from vflash_ports.linear import PackedLinear

GEMMS = ("bf16", "fp8", "fp8 fast")
ATTENTION = "attention "


def floor_calls(
    rows: int, sizes: Sizes, block: RawBlock, packed: Mapping[str, PackedLinear], device: torch.device
) -> dict[str, Callable[[], object]]:
    """ "bf16 qkv", "fp8 out", ..., "attention sdpa-cudnn", ...: contiguous random inputs, outputs thrown away."""
    calls: dict[str, Callable[[], object]] = {}
    for name, weight in block.linears.items():
        values = torch.randn(rows, weight.shape[1], dtype=torch.bfloat16, device=device)
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
        calls[f"bf16 {name}"] = partial(F.linear, values, weight)
        calls[f"fp8 {name}"] = partial(scaled, use_fast_accum=False)
        calls[f"fp8 fast {name}"] = partial(scaled, use_fast_accum=True)
    shape = (rows, sizes.heads, sizes.head_dim)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(3))
    for backend in exact_names(packed_layout(rows, sizes, device)):
        attend = attention_beside_q(backend, rows, sizes, device)
        calls[f"{ATTENTION}{backend}"] = partial(attend, q, k, v, block=0, evaluation=0)
    return calls


def fastest_attention(part_ms: Mapping[str, float]) -> str:
    """The part with the fewest milliseconds among the exact attentions."""
    return min((name for name in part_ms if name.startswith(ATTENTION)), key=lambda name: part_ms[name])


def floor_chains(
    calls: Mapping[str, Callable[[], object]], block: RawBlock, attention: str
) -> dict[str, Callable[[], object]]:
    """The parts one after the other, as a block runs them, with the part `attention`."""

    def chain(kind: str) -> Callable[[], object]:
        names = [f"{kind} qkv", attention, f"{kind} out", f"{kind} ffn_in", f"{kind} ffn_out"]
        assert set(names) - {attention} == {f"{kind} {name}" for name in block.linears}
        return lambda: [calls[name]() for name in names][:0]

    return {f"floor {kind}": chain(kind) for kind in GEMMS}


def exact_attention(name: str, rows: int, sizes: Sizes, device: torch.device) -> AttentionFn:
    """An exact backend by name, `auto` being the device's, prepared for one packed sequence. Its report names what it
    is."""
    layout = packed_layout(rows, sizes, device)
    return _named(name, layout).prepare(layout)


def attention_beside_q(name: str, rows: int, sizes: Sizes, device: torch.device) -> AttentionFn:
    """The same, with its result in memory of its own, so that q is there again for the next call."""
    layout = packed_layout(rows, sizes, device)
    backend = _named(name, layout)
    if isinstance(backend, SdpaAttention):
        return evolve(backend, in_place_rows=rows + 1).prepare(layout)
    return ExactAttentionFn(backend=backend.name, layout=layout, kernel=_dense_beside_q)


def packed_layout(rows: int, sizes: Sizes, device: torch.device) -> AttentionLayout:
    return AttentionLayout(
        segments=(),
        rows=rows,
        heads=sizes.heads,
        head_dim=sizes.head_dim,
        blocks=1,
        evaluations=1,
        device=device,
        dtype=torch.bfloat16,
    )


def _named(name: str, layout: AttentionLayout) -> Attention:
    return exact_backend(default_backend(layout) if name == "auto" else name)


def _dense_beside_q(q_SHD: torch.Tensor, k_SHD: torch.Tensor, v_SHD: torch.Tensor) -> torch.Tensor:
    from vflash_adapters.attention.hopper.dense import attend

    out_SHD = q_SHD.new_empty(q_SHD.shape)
    attend(*(x.unsqueeze(0) for x in (q_SHD, k_SHD, v_SHD, out_SHD)))
    return out_SHD
