"""A training step as one CUDA graph: thousands of small launches become one."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WARM_UP = 5


class GraphedStep:
    """`step(batch)` runs `update` on a batch of the example's shape. Without `graphed` it is a plain call.

    The update must not read the device from the host, and its optimiser must be capturable. If the capture fails the
    step says so in `failure` and goes on as a plain call: it is slower, and nothing else changes.
    """

    def __init__(self, update: Callable[[torch.Tensor], torch.Tensor], example: torch.Tensor, graphed: bool) -> None:
        self.update, self.graphed = update, graphed
        self.batch = example.clone()
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result = torch.zeros(0)
        self.failure = ""

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.graphed and self.graph is None and self.calls > _WARM_UP:
            self._capture()
        if not self.graphed:
            return self.update(batch)
        self.batch.copy_(batch)
        if self.graph is None:
            return self._warm_up()
        self.graph.replay()
        return self.result

    def _warm_up(self) -> torch.Tensor:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.result = self.update(self.batch)
        torch.cuda.current_stream().wait_stream(side)
        return self.result

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.result = self.update(self.batch)
        except RuntimeError as error:
            self.graphed, self.failure = False, str(error)[:300]
            return
        self.graph = graph
