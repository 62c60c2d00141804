"""The denoiser in training form: the released architecture over a batch whose samples each have their own timesteps.

Parameters are a flat mapping under the checkpoint's own names, so LoRA or EMA values can stand in for them. All samples
of a batch share one packed layout; each has its own noise level for video and for sound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen

from vflash.domain.model_facts import DenoiserFacts
from vflash.model.positions import MODALITIES, PackedIndex, Role
from vflash.model.rotary import rotary_tables

Parameters = Mapping[str, torch.Tensor]
ROLES = (Role.VIDEO, Role.TEXT, Role.AUDIO, Role.CONDITION_VIDEO)
CONDITION_T = 0.999
_BLOCK_WEIGHTS = (
    "norm1.weight",
    "attn.to_q.weight",
    "attn.to_k.weight",
    "attn.to_v.weight",
    "attn.norm_q.weight",
    "attn.norm_k.weight",
    "attn.to_out.0.weight",
    "norm2.weight",
    "ff.net.0.proj.weight",
    "ff.net.2.weight",
)
Watch = Callable[[int, torch.Tensor, torch.Tensor], None]


@frozen(kw_only=True, eq=False)
class BatchLayout:
    """What every sample of a batch shares, on the device. `membership` [S, roles] is one at each row's role."""

    membership: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    text_rows: int
    condition_rows: int
    audio_rows: int


def batch_layout(index: PackedIndex, facts: DenoiserFacts, device: torch.device, dtype: torch.dtype) -> BatchLayout:
    cos, sin = rotary_tables(index.positions, facts)
    membership = torch.stack([(index.roles == int(role)) for role in ROLES], dim=1)
    assert bool(membership.any(1).all()), "reference sounds are not trained"
    return BatchLayout(
        membership=membership.to(device, dtype),
        cos=cos.to(device),
        sin=sin.to(device),
        text_rows=index.text_rows,
        condition_rows=sum(part.stop - part.start for part in index.condition_video),
        audio_rows=index.target_audio.stop - index.target_audio.start,
    )


@frozen(kw_only=True, eq=False)
class Noised:
    """Rows as they enter: `text` [B, Lt, text_dim], `condition` [B, Lc, 96] or None, `audio` [B, La, 32], `video`
    [B, Lv, 96]; `t_video`, `t_audio` [B]."""

    text: torch.Tensor
    condition: torch.Tensor | None
    audio: torch.Tensor
    video: torch.Tensor
    t_video: torch.Tensor
    t_audio: torch.Tensor


class Denoiser:
    """`velocities` is differentiable in the parameters and in everything in `Noised`."""

    def __init__(self, facts: DenoiserFacts, dtype: torch.dtype, *, compiled: bool) -> None:
        self.facts, self.dtype = facts, dtype
        self.block = _compiled_block() if compiled else _block

    def velocities(
        self, p: Parameters, noised: Noised, layout: BatchLayout, watch: Watch | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Float32 velocities toward the data of the generated rows: video [B, Lv, 96], audio [B, La, 32].

        `watch(block, q, k)` sees what enters each attention, [B, S, heads, head_dim].
        """
        x = self._pack(p, noised)
        silu_t = F.silu(self._times(p, noised))
        for index in range(self.facts.num_layers):
            weights = [p[f"transformer_blocks.{index}.{name}"].to(self.dtype) for name in _BLOCK_WEIGHTS]
            table = self._table(p, f"transformer_blocks.{index}.adaln_proj.linear", silu_t)
            if watch is not None:
                watch(index, *_watched(self, weights, x, table, layout))
            x = self.block(x, table, layout.membership, layout.cos, layout.sin, weights, self._shape())
        return self._heads(p, x, silu_t, layout)

    def _pack(self, p: Parameters, noised: Noised) -> torch.Tensor:
        parts = [self._refine(p, noised.text)]
        if noised.condition is not None:
            parts.append(_linear(p, "proj_in", noised.condition.float()))
        parts += [_linear(p, "audio_proj_in", noised.audio.float()), _linear(p, "proj_in", noised.video.float())]
        return torch.cat([part.to(self.dtype) for part in parts], dim=1)

    def _refine(self, p: Parameters, text: torch.Tensor) -> torch.Tensor:
        x = _linear(p, "context_embedder", text.to(self.dtype), self.dtype)
        for index in range(self.facts.num_refiner_layers):
            w = [p[f"token_refiner.refiner_blocks.{index}.{name}"].to(self.dtype) for name in _BLOCK_WEIGHTS]
            q, k, v = _qkv(_norm(x, w[0], self.facts.norm_eps), w, self._shape())
            x = x + _attend(q, k, v) @ w[6].T
            x = x + _feed_forward(_norm(x, w[7], self.facts.norm_eps), w)
        return _norm(x, p["token_refiner.final_norm.weight"].to(self.dtype), self.facts.final_norm_eps)

    def _times(self, p: Parameters, noised: Noised) -> torch.Tensor:
        """[B, 3, time_embed_dim] float32: video, audio, condition."""
        condition = noised.t_video.clamp(min=CONDITION_T)
        times = torch.stack([noised.t_video, noised.t_audio, condition], dim=1)
        half = self.facts.freq_dim // 2
        frequencies = torch.exp(-math.log(10000) * torch.arange(half, device=times.device) / half)
        angles = times[..., None].float() * frequencies
        hidden = F.silu(_linear(p, "time_embedder.linear_1", torch.cat([angles.cos(), angles.sin()], dim=-1)))
        return _linear(p, "time_embedder.linear_2", hidden)

    def _table(self, p: Parameters, name: str, silu_t: torch.Tensor) -> torch.Tensor:
        """One block's modulation by role: [B, roles, 6 * C]. Text and generated video share the video's time."""
        rows = _linear(p, name, silu_t.to(self.dtype), self.dtype).unflatten(-1, (MODALITIES, -1))
        time_of = {Role.VIDEO: 0, Role.TEXT: 0, Role.AUDIO: 1, Role.CONDITION_VIDEO: 2}
        return torch.stack([rows[:, time_of[role], role.tag] for role in ROLES], dim=1)

    def _heads(
        self, p: Parameters, x: torch.Tensor, silu_t: torch.Tensor, layout: BatchLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        final = _linear(p, "norm_out.linear", silu_t.to(self.dtype), self.dtype)
        x = _norm(x, p["norm_out.norm.weight"].to(self.dtype), self.facts.final_norm_eps)
        audio_from = layout.text_rows + layout.condition_rows
        video_from = audio_from + layout.audio_rows
        outputs = []
        for name, rows, time in (
            ("audio_proj_out", x[:, audio_from:video_from], 1),
            ("proj_out", x[:, video_from:], 0),
        ):
            shift, scale = final[:, time, None].chunk(2, dim=-1)
            outputs.append(_linear(p, name, (rows * (1.0 + scale) + shift).float()))
        return outputs[1], outputs[0]

    def _shape(self) -> tuple[int, float, float]:
        return self.facts.attention_head_dim, self.facts.norm_eps, self.facts.qk_norm_eps


def new_parameters(config: Mapping[str, Any], generator: torch.Generator) -> dict[str, torch.nn.Parameter]:
    """Fresh weights under the checkpoint's names: gates and output heads start at zero."""
    from diffusers import MiniMaxH3Transformer3DModel

    values = {}
    model: Any = MiniMaxH3Transformer3DModel(**config)
    for name, like in model.state_dict().items():
        if name.endswith(("adaln_proj.linear.weight", "norm_out.linear.weight", "proj_out.weight", "bias")):
            value = torch.zeros_like(like)
        elif like.ndim == 1:
            value = torch.ones_like(like)
        else:
            value = torch.randn(like.shape, generator=generator) * (0.7 * like.shape[1] ** -0.5)
        values[name] = torch.nn.Parameter(value)
    return values


def hidden_matrices(parameters: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the attention and FFN matrices, refiner included."""
    return [name for name, value in parameters.items() if value.ndim == 2 and (".attn." in name or ".ff." in name)]


@cache
def _compiled_block() -> Callable[..., torch.Tensor]:
    """One wrapper for every model, so that each shape family is compiled once."""
    return torch.compile(_block, dynamic=True)


def _block(
    x: torch.Tensor,
    table: torch.Tensor,
    membership: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    w: list[torch.Tensor],
    shape: tuple[int, float, float],
) -> torch.Tensor:
    """x [B, S, C] -> [B, S, C]. Each row's modulation is picked by a product with its one-hot role."""
    shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = (membership @ table).chunk(6, dim=-1)
    q, k, v = _qkv(_norm(x, w[0], shape[1]) * (1.0 + scale_a) + shift_a, w, shape)
    x = x + gate_a * (_attend(_rotate(q, cos, sin), _rotate(k, cos, sin), v) @ w[6].T)
    return x + gate_f * _feed_forward(_norm(x, w[7], shape[1]) * (1.0 + scale_f) + shift_f, w)


def _watched(
    denoiser: Denoiser, w: list[torch.Tensor], x: torch.Tensor, table: torch.Tensor, layout: BatchLayout
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = denoiser._shape()
    shift, scale = (layout.membership @ table).chunk(6, dim=-1)[:2]
    q, k, _ = _qkv(_norm(x, w[0], shape[1]) * (1.0 + scale) + shift, w, shape)
    return _rotate(q, layout.cos, layout.sin), _rotate(k, layout.cos, layout.sin)


def _qkv(x: torch.Tensor, w: list[torch.Tensor], shape: tuple[int, float, float]) -> tuple[torch.Tensor, ...]:
    """Normalised q and k, and v: [B, S, heads, head_dim] each."""
    q, k, v = (x @ torch.cat(w[1:4]).T).unflatten(-1, (3, -1, shape[0])).unbind(2)
    return _norm(q, w[4], shape[2]), _norm(k, w[5], shape[2]), v


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return mixed.transpose(1, 2).flatten(2)


def _feed_forward(x: torch.Tensor, w: list[torch.Tensor]) -> torch.Tensor:
    value, gate = (x @ w[8].T).chunk(2, dim=-1)
    return (value * F.silu(gate)) @ w[9].T


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    width = cos.shape[-1]
    turned, passed = x[..., :width], x[..., width:]
    first, second = turned.chunk(2, dim=-1)
    rotated = turned * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]
    return torch.cat([rotated.to(x.dtype), passed], dim=-1)


def _linear(p: Parameters, name: str, x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return F.linear(x, p[f"{name}.weight"].to(dtype), p[f"{name}.bias"].to(dtype))
