"""The token refiner: plain pre-norm blocks over the text rows, exact attention, no rotary, no modulation."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vflash.domain.model_facts import DenoiserFacts
from vflash.model.residual import NamedLinears


def refine_text(embeds: torch.Tensor, linears: NamedLinears, facts: DenoiserFacts) -> torch.Tensor:
    """embeds [text rows, text_dim] -> [text rows, hidden] in the model's dtype; runs once a request.

    `linears` by checkpoint name: `context_embedder`, `token_refiner.*`.
    """
    x = linears("context_embedder", embeds.to(linears.weights["context_embedder.weight"].dtype))
    for layer in range(facts.num_refiner_layers):
        block = f"token_refiner.refiner_blocks.{layer}."
        x = x + _attention(_norm(x, linears, f"{block}norm1", facts.norm_eps), linears, block, facts)
        x = x + _feed_forward(_norm(x, linears, f"{block}norm2", facts.norm_eps), linears, block)
    return _norm(x, linears, "token_refiner.final_norm", facts.final_norm_eps)


def _norm(x: torch.Tensor, linears: NamedLinears, name: str, eps: float) -> torch.Tensor:
    weight = linears.weights[f"{name}.weight"]
    return F.rms_norm(x, weight.shape, weight, eps)


def _attention(x: torch.Tensor, linears: NamedLinears, block: str, facts: DenoiserFacts) -> torch.Tensor:
    shape = (x.shape[0], facts.num_attention_heads, facts.attention_head_dim)
    q, k, v = (linears(f"{block}attn.to_{name}", x).view(shape) for name in "qkv")
    q = _norm(q, linears, f"{block}attn.norm_q", facts.qk_norm_eps)
    k = _norm(k, linears, f"{block}attn.norm_k", facts.qk_norm_eps)
    # With a batch axis torch chooses the kernel that the released model runs, and so its rounding.
    q_BHSD, k_BHSD, v_BHSD = (part.transpose(0, 1)[None] for part in (q, k, v))
    mixed_HSD = F.scaled_dot_product_attention(q_BHSD, k_BHSD, v_BHSD)[0]
    return linears(f"{block}attn.to_out.0", mixed_HSD.transpose(0, 1).flatten(1))


def _feed_forward(x: torch.Tensor, linears: NamedLinears, block: str) -> torch.Tensor:
    value, gate = linears(f"{block}ff.net.0.proj", x).chunk(2, dim=-1)
    return linears(f"{block}ff.net.2", value * F.silu(gate))
