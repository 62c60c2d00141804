"""Our block in every linear execution, dense attention: time, peak memory, error, launch overhead."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from attrs import frozen

from denoiser_bench.case import Sequence, Sizes, block_run
from denoiser_bench.floor import attention_beside_q, exact_attention
from denoiser_bench.timing import interleaved, relative_error
from vflash.model.block import BlockWeights, run_block
from vflash_ports.block_kernels import BlockKernels


@frozen(kw_only=True, eq=False)
class OurBlock:
    """One sequence length: the same inputs for every variant."""

    sizes: Sizes
    sequence: Sequence
    table: torch.Tensor
    kernels: BlockKernels
    attention: str
    device: torch.device

    def call(self, weights: BlockWeights, *, parts: int, in_place: bool = True) -> Callable[[], torch.Tensor]:
        """The block, its rows in `parts`, over the sequence's own x, which it overwrites; values stay finite."""
        rows = self.sequence.x.shape[0]
        prepared = exact_attention if in_place else attention_beside_q
        attend = prepared(self.attention, rows, self.sizes, self.device)
        run = block_run(self.sequence, self.sizes, self.kernels, attend, -(-rows // parts))
        return lambda: run_block(weights, run, self.sequence.x, self.table, block=0, evaluation=0)

    def attention_backend(self) -> str:
        """What `attention` stands for here."""
        rows = self.sequence.x.shape[0]
        return exact_attention(self.attention, rows, self.sizes, self.device).report().backend

    def refresh(self) -> None:
        """New x: repeated calls have made the old one large beside what a block adds."""
        self.sequence.x.normal_()

    def output(self, weights: BlockWeights) -> torch.Tensor:
        """The block's result on a copy of x."""
        before = self.sequence.x.clone()
        result = self.call(weights, parts=1)().clone()
        self.sequence.x.copy_(before)
        return result

    def graph_figures(self, weights: BlockWeights) -> dict[str, float]:
        """Launch overhead: queued eager calls against replays of one captured graph."""
        call = self.call(weights, parts=1)
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        times = interleaved({"eager": call, "graph": graph.replay}, self.device, rounds=5, batch=20)
        return {"eager_ms": times["eager"], "graph_ms": times["graph"], "overhead": times["eager"] / times["graph"] - 1}


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
