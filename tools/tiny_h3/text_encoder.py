"""The text encoder in training form: Qwen3-VL's decoder layers, only those that compute, batched.

Stored under Qwen3-VL's own tensor names. A picture is one vision token whose feature is a learned vector: the bias of
the tower's last linear, whose weight is zero, so the tower says only that a picture is there. Its M-RoPE ids are then
a plain count, as for text alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tiny_h3.sizes import ACTIVE_TEXT_LAYERS

THETA = 5_000_000.0
EPS = 1e-6


class TextEncoder(nn.Module):
    """`text` is the config's text part. ids [B, L] int64 -> hidden state 50 [B, L, width]."""

    def __init__(self, text: Mapping[str, Any], vocabulary: int, image_pad: int) -> None:
        super().__init__()
        width = text["hidden_size"]
        self.image_pad = image_pad
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.picture = nn.Parameter(torch.randn(width))
        self.layers = nn.ModuleList(_Layer(text) for _ in range(ACTIVE_TEXT_LAYERS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        x = torch.where((ids == self.image_pad)[..., None], self.picture, x)
        for layer in self.layers:
            x = layer(x)
        return x


class _Layer(nn.Module):
    def __init__(self, text: Mapping[str, Any]) -> None:
        super().__init__()
        width, head = text["hidden_size"], text["head_dim"]
        self.input_layernorm = nn.RMSNorm(width, eps=EPS)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=EPS)
        self.self_attn = _Attention(width, text["num_attention_heads"], text["num_key_value_heads"], head)
        self.mlp = _Mlp(width, text["intermediate_size"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.q_proj = nn.Linear(width, heads * head, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * head, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * head, bias=False)
        self.o_proj = nn.Linear(heads * head, width, bias=False)
        self.q_norm = nn.RMSNorm(head, eps=EPS)
        self.k_norm = nn.RMSNorm(head, eps=EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (proj(x).unflatten(-1, (-1, self.head)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = _rotary(x.shape[1], self.head, x.device)
        q, k = _rotate(self.q_norm(q), cos, sin), _rotate(self.k_norm(k), cos, sin)
        groups = q.shape[2] // k.shape[2]
        q, k, v = (part.transpose(1, 2) for part in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)))
        mixed = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class _Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def _rotary(length: int, head: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    exponents = torch.arange(0, head, 2, device=device, dtype=torch.float32) / head
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] / THETA**exponents
    angles = torch.cat([angles, angles], dim=-1)[:, None]
    return angles.cos(), angles.sin()


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
