"""Recording the one forward there is: the same bits, every piece once, and no wait of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from vflash.domain.denoise_profile import BLOCK_DETAILS, BLOCK_PHASES, ENGINE_PHASES, HOST_PHASES
from vflash.domain.model_facts import read_model_facts
from vflash.domain.plan import plan_request
from vflash.domain.request import VideoRequest
from vflash.model.transformer import open_denoiser
from vflash.stages.denoise import denoise
from vflash.stages.encode import Conditioning, Conditions
from vflash.stages.recorder import PhaseRecorder
from vflash.stages.watch import RequestWatch
from vflash_adapters.attention.sdpa import sdpa_attention
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.residency.block_ring import BlockRing
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.text_encoder import TextConditioning

CPU = torch.device("cpu")


def run(folder: Path, watch: RequestWatch) -> torch.Tensor:
    facts = read_model_facts(folder)
    plan = plan_request(VideoRequest(prompt="x", width=64, height=64, steps=3), facts)
    torch.manual_seed(0)
    text = TextConditioning(embeds=torch.randn(7, facts.denoiser.text_dim), tags=torch.ones(7, dtype=torch.int64))
    with open_denoiser(
        MmapWeights(folder / "transformer"),
        what="tiny",
        facts=facts.denoiser,
        execution=Bf16Linear(),
        kernels=TorchBlockKernels(),
        residency=BlockRing(),
        device=CPU,
        dtype=torch.float32,
        ffn_chunk_rows=1 << 20,
    ) as denoiser:
        conditioning = Conditioning(text=text, conditions=Conditions())
        latents, _ = denoise(plan, conditioning, denoiser, sdpa_attention("sdpa"), watch)
    return latents.video


def test_the_recorded_forward_is_the_same_forward(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Bit-equal latents; every phase of every block and evaluation is seen exactly once."""
    folder = tiny_checkpoints["small"]
    recorder = PhaseRecorder(CPU)
    recorded = run(folder, RequestWatch(phases=recorder))
    assert torch.equal(recorded, run(folder, RequestWatch()))
    blocks, evaluations = 3, 3
    seen = Counter(span.name for span in recorder.spans())
    once_a_block = {*BLOCK_PHASES, *BLOCK_DETAILS, "block", "ring_wait"} - {"adaln"}
    assert all(seen[name] == blocks * evaluations for name in once_a_block)
    once_an_evaluation = {*ENGINE_PHASES, *HOST_PHASES, "evaluation"} - {"final_fence"}
    assert all(seen[name] == evaluations for name in once_an_evaluation)
    assert seen["final_fence"] == seen["adaln"] == seen["row_setup"] == seen["invocation_prepare"] == 1
    # two ahead at the start, one for each block used: those for the next pass are under way when the last one ends
    assert seen["ring_copy"] == 2 + blocks * evaluations


def test_what_is_inside_takes_no_longer_than_what_is_around_it(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Details within their phase, phases within their block, blocks within the denoiser, that within the evaluation."""
    recorder = PhaseRecorder(CPU)
    run(tiny_checkpoints["small"], RequestWatch(phases=recorder))
    profile, trace = recorder.finish(block_bytes=10)
    for engine, ring in zip(profile["engine"]["evaluations"], profile["block_ring"]["evaluations"], strict=True):
        phases, details = ring["block_phase_seconds"], ring["block_detail_seconds"]
        for outer in {name.partition(".")[0] for name in details}:
            inner = sum(seconds for name, seconds in details.items() if name.startswith(outer))
            assert 0 < inner <= phases[outer]
        compute = sum(ring["block_compute_seconds"])
        gpu = engine["primary_gpu_seconds"]
        assert sum(phases.values()) <= compute <= gpu["denoiser"] <= gpu["primary_stream"]
        assert ring["compute_span_seconds"] <= gpu["denoiser"]
    assert profile["instrumentation"] == "perf_counter"
    assert profile["execution_seconds_to_final_fence"] > 0
    assert len(trace["traceEvents"]) == 3 + len(recorder.spans())


def test_the_trace_is_one_that_viewers_open(tiny_checkpoints: Mapping[str, Path]) -> None:
    """By the Trace Event Format: an object with `traceEvents`, each named and placed, complete events with a start and
    a length in microseconds from zero on, and on each row nested or apart, for a viewer drops what overlaps."""
    recorder = PhaseRecorder(CPU)
    run(tiny_checkpoints["small"], RequestWatch(phases=recorder))
    _, trace = recorder.finish(block_bytes=10)
    trace = json.loads(json.dumps(trace, allow_nan=False))
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    rows: dict[int, list[tuple[float, float]]] = {}
    named = {event["tid"] for event in trace["traceEvents"] if event["ph"] == "M" and event["name"] == "thread_name"}
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is type(event["tid"]) is int
        assert isinstance(event["args"], dict)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
        else:
            assert event["ph"] == "M"
    assert rows.keys() == named
    for spans in rows.values():
        around: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1] + 1e-3
            around.append(end)


class FakeCuda:
    """A device whose events tick once each; every wait of the host is counted."""

    def __init__(self) -> None:
        self.ticks = 0
        self.waits = 0

    def event(self, *, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent(self)

    def synchronize(self, _device: torch.device) -> None:
        self.waits += 1


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.at = 0

    def record(self, stream: str) -> None:
        assert stream == "current stream"
        self._cuda.ticks += 1
        self.at = self._cuda.ticks

    def elapsed_time(self, other: FakeEvent) -> float:
        assert self._cuda.waits, "an event was read before the device was at rest"
        return float(other.at - self.at)


def test_on_a_gpu_nothing_waits_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases only record events on the current stream; one wait, in `finish`, precedes reading any of them."""
    cuda = FakeCuda()
    monkeypatch.setattr(torch.cuda, "Event", cuda.event)
    monkeypatch.setattr(torch.cuda, "synchronize", cuda.synchronize)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: "current stream")
    recorder = PhaseRecorder(torch.device("cuda:0"))
    with recorder.phase("evaluation", evaluation=0), recorder.phase("block", evaluation=0, block=0):
        pass
    assert cuda.waits == 0
    inner, outer = recorder.spans()
    assert cuda.waits == 1
    assert (inner.name, inner.start_s, inner.seconds) == ("block", 0.002, 0.001)
    assert (outer.name, outer.start_s, outer.seconds) == ("evaluation", 0.001, 0.003)
