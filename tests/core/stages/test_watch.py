"""Stage seconds nest, and a callback that raises is a cancel."""

from __future__ import annotations

import pytest

from vflash.domain.progress import PipelineProgress
from vflash.stages.watch import RequestWatch


def test_stages_nest_and_the_outer_one_holds_the_inner():
    """An inner stage lies inside its outer stage's record and takes no longer than it."""
    watch = RequestWatch()
    with watch.stage("encoding"):
        with watch.stage("text"):
            pass
        with watch.stage("conditions"):
            pass
    with watch.stage("media"):
        pass
    assert set(watch.stages) == {"encoding", "media"}
    encoding = watch.stages["encoding"]
    assert set(encoding) == {"elapsed_seconds", "text", "conditions"}
    inner = encoding["text"]["elapsed_seconds"] + encoding["conditions"]["elapsed_seconds"]
    assert encoding["elapsed_seconds"] >= inner > 0


def test_a_stage_entered_twice_adds_up():
    """One record a name."""
    watch = RequestWatch()
    with watch.stage("load"):
        pass
    once = watch.stages["load"]["elapsed_seconds"]
    with watch.stage("load"):
        pass
    assert watch.stages["load"]["elapsed_seconds"] > once


def test_a_failed_stage_is_closed():
    """What failed inside does not become the parent of what follows."""
    watch = RequestWatch()
    with pytest.raises(RuntimeError), watch.stage("denoising"), watch.stage("load"):
        raise RuntimeError
    with watch.stage("media"):
        pass
    assert set(watch.stages) == {"denoising", "media"}
    assert watch.stages["denoising"]["load"]["elapsed_seconds"] >= 0


def test_progress_reaches_the_callback_whole():
    """Stage, completed and total; without a callback nothing happens."""
    seen: list[PipelineProgress] = []
    watch = RequestWatch(seen.append)
    watch.progress("denoising", 2, 50)
    RequestWatch().progress("denoising", 2, 50)
    assert seen == [PipelineProgress(stage="denoising", completed=2, total=50)]
    assert not watch.cancelled


@pytest.mark.parametrize("error", [RuntimeError("enough"), KeyboardInterrupt()])
def test_a_callback_that_raises_cancels(error):
    """The error passes through unchanged and is remembered as the caller's own."""

    def callback(_: PipelineProgress) -> None:
        raise error

    watch = RequestWatch(callback)
    with pytest.raises(type(error)) as caught:
        watch.progress("denoising", 2, 50)
    assert caught.value is error is watch.cancellation
    assert watch.cancelled


def test_phases_are_silent():
    """The hot path's observer costs a call and holds nothing."""
    watch = RequestWatch()
    with watch.phase("attention", evaluation=1, block=2):
        pass
    assert watch.stages == {}
