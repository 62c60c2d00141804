"""A training step as one CUDA graph: thousands of small launches become one."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WARM_UP = 4


class GraphedStep:
    """`step(*batch)` runs `update` on tensors of the examples' shapes. On a CPU it is a plain call.

    On a GPU everything that touches the parameters must go through it from the first call on: autograd ties a
    parameter to the stream of its first backward, which must be the captured one. The update must not read the device
    from the host nor draw random numbers, and its optimiser must be capturable. If the capture fails, `failure` says
    so and the step goes on as a plain call: it is slower, and nothing else changes.
    """

    def __init__(self, update: Callable[..., torch.Tensor], *examples: torch.Tensor) -> None:
        self.update = update
        self.graphed = examples[0].is_cuda
        self.static = [example.clone() for example in examples]
        self.calls = 0
        self.stream = torch.cuda.Stream() if self.graphed else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result = torch.zeros(0)
        self.failure = ""

    def __call__(self, *batch: torch.Tensor) -> torch.Tensor:
        if self.stream is None:
            return self.update(*batch)
        for static, given in zip(self.static, batch, strict=True):
            static.copy_(given)
        self.calls += 1
        if self.graphed and self.graph is None and self.calls > _WARM_UP:
            self._capture()
        if self.graph is None:
            return self._plain(self.stream)
        self.graph.replay()
        return self.result

    def _plain(self, stream: torch.cuda.Stream) -> torch.Tensor:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self.update(*self.static)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.result = self.update(*self.static)
        except Exception as error:  # whatever a library raises in there, the plain call goes on
            self.graphed, self.failure = False, str(error)[:300]
            return
        self.graph = graph
