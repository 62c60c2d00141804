"""A training step as CUDA graphs: thousands of small launches become one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from attrs import define, field

_WARM_UP = 4
_WARM_UP_OF_MANY = 2
"""For each of several graphs over one `Capture`."""


@define(kw_only=True, eq=False)
class Capture:
    """The stream and the memory that all graphs of one training share, and why the last capture failed."""

    stream: torch.cuda.Stream = field(factory=torch.cuda.Stream)
    pool: Any = field(factory=torch.cuda.graph_pool_handle)
    failure: str = ""


class GraphedStep:
    """`step(*batch)` runs `update` on tensors of the examples' shapes. On a CPU it is a plain call.

    On a GPU everything that touches the parameters must go through it from the first call on: autograd ties a
    parameter to the stream of its first backward, which must be the captured one. The update must not read the device
    from the host, its random numbers come from the device's own generator, and its optimiser must be capturable. If a
    capture fails, `failure` says so and the steps go on as plain calls: slower, and nothing else changes.
    """

    def __init__(
        self,
        update: Callable[..., torch.Tensor],
        *examples: torch.Tensor,
        capture: Capture | None = None,
        warm_up: int = _WARM_UP,
    ) -> None:
        self.update, self.warm_up = update, warm_up
        on_gpu = examples[0].is_cuda
        self.static = [example.clone() for example in examples]
        self.calls = 0
        self.capture = (capture or Capture()) if on_gpu else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result = torch.zeros(0)

    @property
    def failure(self) -> str:
        return self.capture.failure if self.capture is not None else ""

    @property
    def graphed(self) -> bool:
        return self.graph is not None

    def __call__(self, *batch: torch.Tensor) -> torch.Tensor:
        """With several graphs over one `Capture`, the result holds until the next call of any of them."""
        if self.capture is None:
            return self.update(*batch)
        for static, given in zip(self.static, batch, strict=True):
            static.copy_(given)
        self.calls += 1
        if self.graph is None and self.calls > self.warm_up and not self.failure:
            self._record(self.capture)
        if self.graph is None:
            return self._plain(self.capture.stream)
        self.graph.replay()
        return self.result

    def _plain(self, stream: torch.cuda.Stream) -> torch.Tensor:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self.update(*self.static)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _record(self, capture: Capture) -> None:
        """Without `torch.cuda.graph`, which collects garbage and empties the cache for every one of many graphs."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(capture.stream):
            graph.capture_begin(pool=capture.pool)
            try:
                self.result = self.update(*self.static)
            except Exception as error:  # whatever a library raises in there, the plain call goes on
                capture.failure = str(error)[:300] or type(error).__name__
            try:
                graph.capture_end()
            except RuntimeError as error:
                capture.failure = capture.failure or str(error)[:300]
        if not capture.failure:
            self.graph = graph


class GraphedSteps:
    """A `GraphedStep` for each kind of batch, made when it first comes: `steps(key, update, *batch)`."""

    def __init__(self, device: torch.device) -> None:
        self.capture = Capture() if device.type == "cuda" else None
        self.steps: dict[Hashable, GraphedStep] = {}

    def __call__(self, key: Hashable, update: Callable[..., torch.Tensor], *batch: torch.Tensor) -> torch.Tensor:
        if key not in self.steps:
            self.steps[key] = GraphedStep(update, *batch, capture=self.capture, warm_up=_WARM_UP_OF_MANY)
        return self.steps[key](*batch)

    def state(self) -> str:
        """How many graphs there are, or why there are none."""
        if self.capture is None:
            return "none on a CPU"
        return self.capture.failure or f"{sum(step.graphed for step in self.steps.values())} of {len(self.steps)}"
