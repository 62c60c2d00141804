"""One H3 block over the packed sequence, from ports: norm, QKV, rotary, attention, output, FFN."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from attrs import frozen

from vflash.model.residual import apart
from vflash_ports.attention import AttentionFn
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.linear import BoundLinear
from vflash_ports.observer import Observer


@frozen(kw_only=True, eq=False)
class BlockWeights:
    """One block, bound: norms [hidden] or [head_dim], linears as callables."""

    norm1: torch.Tensor
    norm2: torch.Tensor
    norm_q: torch.Tensor
    norm_k: torch.Tensor
    qkv: BoundLinear
    out: BoundLinear
    ffn_in: BoundLinear
    ffn_out: BoundLinear


@frozen(kw_only=True, eq=False)
class BlockRun:
    """What is the same for every block of one request."""

    kernels: BlockKernels
    attend: AttentionFn
    observer: Observer
    roles: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    heads: int
    norm_eps: float
    qk_norm_eps: float
    chunk_rows: int

    def chunks(self) -> Iterator[slice]:
        """The packed rows in equal parts of at most `chunk_rows`, up to rounding to whole GEMM tiles of 128 rows."""
        rows = self.roles.shape[0]
        parts = max(1, -(-rows // self.chunk_rows))
        step = -(-rows // parts)
        step = -(-step // 128) * 128 if parts > 1 else max(1, step)
        return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def run_block(
    weights: BlockWeights, run: BlockRun, x: torch.Tensor, table: torch.Tensor, *, block: int, evaluation: int
) -> torch.Tensor:
    """x [S, C] -> [S, C] in x's storage; `table` [roles, 6, C]. QKV and attention tensors die before the FFN."""
    shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = table.unbind(1)
    _attention(weights, run, x, shift_a, scale_a, gate_a, block=block, evaluation=evaluation)
    _feed_forward(weights, run, x, shift_f, scale_f, gate_f, block=block, evaluation=evaluation)
    return x


def _attention(
    weights: BlockWeights,
    run: BlockRun,
    x: torch.Tensor,
    shift: torch.Tensor,
    scale: torch.Tensor,
    gate: torch.Tensor,
    *,
    block: int,
    evaluation: int,
) -> None:
    """Projections in chunks of rows: beside x, only q, k, v and what attention itself allocates are ever whole."""
    phase, at = run.observer.phase, {"evaluation": evaluation, "block": block}
    qkv = x.new_empty(x.shape[0], 3 * run.heads * weights.norm_q.shape[0])
    for part in run.chunks():
        with phase("attention_norm_modulate", **at):
            normed = run.kernels.norm_modulate(
                x[part], weights.norm1, shift, scale, run.roles[part], eps=run.norm_eps, emit=weights.qkv.consumes
            )
        with phase("qkv_projection", **at):
            weights.qkv(normed, out=qkv[part])
            del normed
    with phase("qk_norm_rotary", **at):
        q, k, v = run.kernels.qk_norm_rope(
            qkv, weights.norm_q, weights.norm_k, run.cos, run.sin, heads=run.heads, eps=run.qk_norm_eps
        )
    del qkv
    with phase("attention", **at):
        mixed = run.attend(q, k, v, block=block, evaluation=evaluation).flatten(1)
    del q, k, v
    for part in run.chunks():
        with phase("attention_output", **at):
            with phase("attention_output.projection", **at):
                update = weights.out(mixed[part])
            with phase("attention_output.gate_residual", **at):
                run.kernels.gate_residual(x[part], update, gate, run.roles[part])
                del update


def _feed_forward(
    weights: BlockWeights,
    run: BlockRun,
    x: torch.Tensor,
    shift: torch.Tensor,
    scale: torch.Tensor,
    gate: torch.Tensor,
    *,
    block: int,
    evaluation: int,
) -> None:
    """Each chunk of rows through the whole FFN, so that no [rows, 2 * FFN] activation is ever whole in memory."""
    phase, at = run.observer.phase, {"evaluation": evaluation, "block": block}
    for part in run.chunks():
        x_part, roles = x[part], run.roles[part]
        with phase("ffn_norm_modulate", **at):
            normed = run.kernels.norm_modulate(
                x_part, weights.norm2, shift, scale, roles, eps=run.norm_eps, emit=weights.ffn_in.consumes
            )
        with phase("ffn_input", **at):
            with phase("ffn_input.projection", **at):
                made = apart(weights.ffn_in, normed)
                del normed
            with phase("ffn_input.silu_gate", **at):
                hidden = run.kernels.swiglu(
                    made.values, emit=weights.ffn_out.consumes, residual=made.residual, residual_scale=made.scale
                )
                del made
        with phase("ffn_output", **at):
            with phase("ffn_output.projection", **at):
                update = weights.ffn_out(hidden)
                del hidden
            with phase("ffn_output.gate_residual", **at):
                run.kernels.gate_residual(x_part, update, gate, roles)
                del update
