"""Our block in every linear execution, dense attention: time, peak memory, error, launch overhead."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from attrs import frozen

from denoiser_bench.case import Sequence, Sizes, block_run
from denoiser_bench.floor import exact_attention
from denoiser_bench.timing import milliseconds, peak_gib, relative_error
from vflash.model.block import BlockWeights, run_block
from vflash_ports.attention import AttentionFn, AttentionReport
from vflash_ports.block_kernels import BlockKernels

PARTS = (1, 2, 3, 4, 6)  # the rows go through QKV and FFN in so many equal parts


@frozen(kw_only=True, eq=False)
class OurBlock:
    """One sequence length: the same inputs for every variant."""

    sizes: Sizes
    sequence: Sequence
    table: torch.Tensor
    kernels: BlockKernels
    attention: str
    device: torch.device
    base_bytes: int

    def call(self, weights: BlockWeights, *, chunk: int, head_groups: int = 0) -> Callable[[], torch.Tensor]:
        """The block over the sequence's own x, which it overwrites: values stay finite over many calls."""
        rows = self.sequence.x.shape[0]
        attend: AttentionFn
        if head_groups:
            heads = self.sizes.heads // head_groups
            part = Sizes(hidden=self.sizes.hidden, heads=heads, head_dim=self.sizes.head_dim)
            attend = InPlaceHeadGroups(exact_attention(self.attention, rows, part, self.device), heads)
        else:
            attend = exact_attention(self.attention, rows, self.sizes, self.device)
        run = block_run(self.sequence, self.sizes, self.kernels, attend, chunk)
        return lambda: run_block(weights, run, self.sequence.x, self.table, block=0, evaluation=0)

    def figures(self, weights: BlockWeights, *, chunk: int, head_groups: int = 0) -> dict[str, float]:
        """Milliseconds over batches of queued blocks, and the peak above the weights with x counted."""
        call = self.call(weights, chunk=chunk, head_groups=head_groups)
        time = milliseconds(call, self.device, repeats=5, batch=2)
        return {"ms": time, "peak_gib": peak_gib(call, self.device, self.base_bytes)}

    def chunk_rows(self, parts: int) -> int:
        return -(-self.sequence.x.shape[0] // parts)

    def parts_table(self, weights: BlockWeights) -> dict[str, dict[str, float]]:
        """Time and peak by the number of parts."""
        return {str(parts): self.figures(weights, chunk=self.chunk_rows(parts)) for parts in PARTS}

    def refresh(self) -> None:
        """New x: repeated calls have made the old one large beside what a block adds."""
        self.sequence.x.normal_()

    def output(self, weights: BlockWeights) -> torch.Tensor:
        """The block's result on a copy of x."""
        before = self.sequence.x.clone()
        result = self.call(weights, chunk=self.chunk_rows(1))().clone()
        self.sequence.x.copy_(before)
        return result

    def graph_figures(self, weights: BlockWeights) -> dict[str, float]:
        """Launch overhead: queued eager calls against replays of one captured graph."""
        call = self.call(weights, chunk=self.chunk_rows(1))
        eager = milliseconds(call, self.device, batch=20)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        replay = milliseconds(graph.replay, self.device, batch=20)
        return {"eager_ms": eager, "graph_ms": replay, "overhead": eager / replay - 1}


class InPlaceHeadGroups:
    """Attention some heads at a time, each result written over its own q: the output needs no memory of its own."""

    def __init__(self, attend: AttentionFn, heads: int) -> None:
        self._attend, self._heads = attend, heads

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block: int, evaluation: int
    ) -> torch.Tensor:
        for start in range(0, q.shape[1], self._heads):
            part = slice(start, start + self._heads)
            q[:, part] = self._attend(q[:, part], k[:, part], v[:, part], block=block, evaluation=evaluation)
        return q

    def report(self) -> AttentionReport:
        return self._attend.report()


def errors(ours: OurBlock, variants: Mapping[str, BlockWeights], exact: torch.Tensor | None) -> dict[str, float]:
    """Relative error of each variant's output against plain BF16, of what the block adds to x, and of the peer."""
    x = ours.sequence.x.clone()
    plain = ours.output(variants["bf16"])
    table = {}
    for name, weights in variants.items():
        result = ours.output(weights)
        if name != "bf16":
            table[f"{name} output"] = relative_error(result, plain)
            table[f"{name} update"] = relative_error(result.double() - x.double(), plain.double() - x.double())
    if exact is not None:
        table["peer output"] = relative_error(plain, exact)
        table["peer differs"] = float((plain != exact).double().mean())
    return table
