"""One random block and one random packed sequence at the model's real sizes, shared by the peer, the floor and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen

from vflash.model.block import BlockRun, BlockWeights
from vflash_ports.attention import AttentionFn
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.linear import LinearExecution, PackedLinear
from vflash_ports.observer import SilentObserver

EPS = 1e-5


@frozen(kw_only=True)
class Sizes:
    """The released model's by default; `ROTARY` of each head's channels turn."""

    hidden: int = 5376
    heads: int = 56
    head_dim: int = 128
    ffn: int = 14336
    time_dim: int = 2688
    rotary: int = 96

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim


@frozen(kw_only=True, eq=False)
class RawBlock:
    """BF16 weights by role; linears [out, in]."""

    norms: dict[str, torch.Tensor]
    linears: dict[str, torch.Tensor]
    adaln_weight: torch.Tensor
    adaln_bias: torch.Tensor

    def bound(self, execution: LinearExecution) -> BlockWeights:
        return self.stored(execution, {name: execution.pack(weight) for name, weight in self.linears.items()})

    def stored(self, execution: LinearExecution, packed: Mapping[str, PackedLinear]) -> BlockWeights:
        """Weights that are packed already."""
        parts: dict[str, Any] = {**self.norms, **{name: execution.bind(linear) for name, linear in packed.items()}}
        return BlockWeights(**parts)


@frozen(kw_only=True, eq=False)
class Sequence:
    """x [S, C]; `rows` [S] into the modulation tables; cos, sin [S, rotary] float32; temb [timesteps, time_dim]."""

    x: torch.Tensor
    rows: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    temb: torch.Tensor


def random_block(sizes: Sizes, device: torch.device) -> RawBlock:
    """Linear weights keep unit variance, so that activations stay in a model's range."""
    c, inner = sizes.hidden, sizes.inner
    shapes = {"qkv": (3 * inner, c), "out": (c, inner), "ffn_in": (2 * sizes.ffn, c), "ffn_out": (c, sizes.ffn)}
    norms = {"norm1": c, "norm2": c, "norm_q": sizes.head_dim, "norm_k": sizes.head_dim}
    return RawBlock(
        norms={name: (1 + 0.1 * torch.randn(width, device=device)).bfloat16() for name, width in norms.items()},
        linears={name: _weight(shape, device) for name, shape in shapes.items()},
        adaln_weight=_weight((18 * c, sizes.time_dim), device),
        adaln_bias=torch.zeros(18 * c, dtype=torch.bfloat16, device=device),
    )


def _weight(shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=device).mul_(shape[1] ** -0.5)


def random_sequence(rows: int, sizes: Sizes, device: torch.device) -> Sequence:
    """About 1 % text, then audio, then video, in runs, as a packed sequence has them; two timesteps."""
    text, audio = max(1, rows // 100), max(1, rows // 90)
    tags = torch.zeros(rows, dtype=torch.int64, device=device)
    tags[:text], tags[text : text + audio] = 1, 2 + 3
    angle = torch.rand(rows, sizes.rotary // 2, device=device).mul_(6.28).repeat(1, 2)
    return Sequence(
        x=torch.randn(rows, sizes.hidden, dtype=torch.bfloat16, device=device),
        rows=tags,
        cos=angle.cos(),
        sin=angle.sin(),
        temb=torch.randn(2, sizes.time_dim, device=device),
    )


def modulation_table(block: RawBlock, sequence: Sequence, sizes: Sizes) -> torch.Tensor:
    """[timesteps * 3, 6, C], as the AdaLN projection of the block gives it."""
    projected = torch.nn.functional.linear(
        torch.nn.functional.silu(sequence.temb).bfloat16(), block.adaln_weight, block.adaln_bias
    )
    return projected.view(-1, 6, sizes.hidden)


def block_run(
    sequence: Sequence, sizes: Sizes, kernels: BlockKernels, attend: AttentionFn, chunk_rows: int
) -> BlockRun:
    return BlockRun(
        kernels=kernels,
        attend=attend,
        observer=SilentObserver(),
        roles=sequence.rows,
        cos=sequence.cos,
        sin=sequence.sin,
        heads=sizes.heads,
        norm_eps=EPS,
        qk_norm_eps=EPS,
        chunk_rows=chunk_rows,
    )
