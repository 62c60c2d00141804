"""The block of diffusers, over the same weights and inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from denoiser_bench.case import EPS, RawBlock, Sequence, Sizes


def peer_block(block: RawBlock, sizes: Sizes) -> torch.nn.Module:
    """`MiniMaxH3TransformerBlock` whose parameters are `block`'s own tensors."""
    from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3TransformerBlock

    with torch.device("meta"):
        module = MiniMaxH3TransformerBlock(
            sizes.hidden, sizes.heads, sizes.head_dim, sizes.ffn, sizes.time_dim, norm_eps=EPS, qk_norm_eps=EPS
        )
    q, k, v = block.linears["qkv"].chunk(3)
    state = {
        "norm1.weight": block.norms["norm1"],
        "norm2.weight": block.norms["norm2"],
        "attn.norm_q.weight": block.norms["norm_q"],
        "attn.norm_k.weight": block.norms["norm_k"],
        "attn.to_q.weight": q,
        "attn.to_k.weight": k,
        "attn.to_v.weight": v,
        "attn.to_out.0.weight": block.linears["out"],
        "ff.net.0.proj.weight": block.linears["ffn_in"],
        "ff.net.2.weight": block.linears["ffn_out"],
        "adaln_proj.linear.weight": block.adaln_weight,
        "adaln_proj.linear.bias": block.adaln_bias,
    }
    module.load_state_dict(state, assign=True)
    return module.eval().requires_grad_(False)


def peer_call(module: Callable[..., torch.Tensor], sequence: Sequence) -> Callable[[], torch.Tensor]:
    """One evaluation of the block, AdaLN projection included, as the reference runs it."""
    x = sequence.x[None]
    return lambda: module(x, sequence.temb, sequence.rows, (sequence.cos, sequence.sin))
