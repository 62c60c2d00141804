"""The token refiner: plain pre-norm blocks over the text rows, exact attention, no rotary, no modulation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from vflash.domain.model_facts import DenoiserFacts

Weights = Mapping[str, torch.Tensor]


def refine_text(embeds: torch.Tensor, weights: Weights, facts: DenoiserFacts) -> torch.Tensor:
    """embeds [text rows, text_dim] -> [text rows, hidden] in the model's dtype; runs once a request.

    `weights` by checkpoint name: `context_embedder.*`, `token_refiner.*`.
    """
    embedder = weights["context_embedder.weight"]
    x = F.linear(embeds.to(embedder.dtype), embedder, weights["context_embedder.bias"])
    for layer in range(facts.num_refiner_layers):
        prefix = f"token_refiner.refiner_blocks.{layer}."
        block = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        x = x + _attention(_norm(x, block["norm1.weight"], facts.norm_eps), block, facts)
        x = x + _feed_forward(_norm(x, block["norm2.weight"], facts.norm_eps), block)
    return _norm(x, weights["token_refiner.final_norm.weight"], facts.final_norm_eps)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _attention(x: torch.Tensor, block: Weights, facts: DenoiserFacts) -> torch.Tensor:
    shape = (x.shape[0], facts.num_attention_heads, facts.attention_head_dim)
    q, k, v = (F.linear(x, block[f"attn.to_{name}.weight"]).view(shape) for name in "qkv")
    q = _norm(q, block["attn.norm_q.weight"], facts.qk_norm_eps)
    k = _norm(k, block["attn.norm_k.weight"], facts.qk_norm_eps)
    # With a batch axis torch chooses the kernel that the released model runs, and so its rounding.
    q_BHSD, k_BHSD, v_BHSD = (part.transpose(0, 1)[None] for part in (q, k, v))
    mixed_HSD = F.scaled_dot_product_attention(q_BHSD, k_BHSD, v_BHSD)[0]
    return F.linear(mixed_HSD.transpose(0, 1).flatten(1), block["attn.to_out.0.weight"])


def _feed_forward(x: torch.Tensor, block: Weights) -> torch.Tensor:
    value, gate = F.linear(x, block["ff.net.0.proj.weight"]).chunk(2, dim=-1)
    return F.linear(value * F.silu(gate), block["ff.net.2.weight"])
