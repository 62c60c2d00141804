"""What a caller is told while a request runs."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen


@frozen(kw_only=True)
class PipelineProgress:
    """`completed` of `total` units of a stage: encoding inputs, denoising evaluations, decoding frames."""

    stage: str
    completed: int
    total: int


ProgressCallback = Callable[[PipelineProgress], None]
