"""The main path: request -> inputs -> conditioning -> latents -> clip -> file. It names no backend."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from attrs import define, field, frozen

from vflash import __version__
from vflash.domain.duration import ClipLength
from vflash.domain.fields import to_path
from vflash.domain.memory_plan import MemoryPlan
from vflash.domain.model_facts import ModelFacts
from vflash.domain.plan import denoiser_folder
from vflash.domain.progress import ProgressCallback
from vflash.domain.receipts import (
    decode_receipt,
    delivery_receipt,
    generation_receipt,
    receipt,
    request_receipt,
)
from vflash.domain.request import VideoRequest
from vflash.model.transformer import Denoiser
from vflash.stages.backends import Backends
from vflash.stages.decode import decode, saved_length
from vflash.stages.denoise import denoise
from vflash.stages.encode import Conditioning, Conditions, encode_conditions, presentation
from vflash.stages.foresee import Foresight
from vflash.stages.gate import Gate
from vflash.stages.gather import Gathered, gather
from vflash.stages.kept import Kept
from vflash.stages.outputs import Outputs, plan_outputs, write_receipt
from vflash.stages.recorder import PhaseRecorder
from vflash.stages.watch import RequestWatch
from vflash_ports.errors import ContractError, DeliveryError, VflashError
from vflash_ports.latent_codec import LatentCodec
from vflash_ports.media import Delivery, Latents, LatentStore, MediaSink, ReferenceReader
from vflash_ports.text_encoder import TextEncoder


@frozen(kw_only=True, eq=False)
class VideoResult:
    """One delivered clip. `stages` nests outer and inner seconds: never add both. `receipt` is what was written."""

    path: Path
    elapsed_seconds: float
    stages: dict[str, Any]
    receipt: dict[str, Any]


@frozen(kw_only=True)
class RequestClock:
    """When a request began, and how much model loading had been paid for by then."""

    number: int
    start: float
    initialization_before: float


@define(kw_only=True, eq=False)
class Engine:
    """One resident pipeline: serial requests, models kept or released by their `Kept` lifetimes."""

    model_dir: Path
    model_facts: Callable[[str], ModelFacts]
    backends: Backends
    foresight: Foresight
    encoder: Kept[TextEncoder]
    codec: Kept[LatentCodec]
    denoisers: Mapping[str, Kept[Denoiser]]
    reader: ReferenceReader
    sink: MediaSink
    latent_store: LatentStore
    _gate: Gate = field(factory=Gate, init=False)

    @property
    def request_count(self) -> int:
        return self._gate.requests

    @property
    def initialization_seconds(self) -> float:
        """All model opening so far; outside every request's own time only when `prepare` was called first."""
        return sum(kept.open_seconds for kept in self._lifetimes())

    def prepare(self) -> None:
        """Check every backend, then load what is kept between requests (of the denoisers the profile's, else that of
        text and keyframe modes)."""
        with self._gate.maintain():
            folder = self._first_denoiser()
            self.backends.check(self.model_facts(folder))
            self.backends.check_adapter(self.model_dir / folder)
            for kept in (self.encoder, self.codec, self.denoisers[folder]):
                if kept.keep:
                    kept.open()

    def plan(self, request: VideoRequest) -> MemoryPlan:
        """What the request needs and whether it fits; reads the inputs and the weight headers, loads nothing."""
        check_request(request)
        facts = self.model_facts(denoiser_folder(request.mode))
        return self.foresight.plan(
            request, gather(request, facts, self.reader, self.backends.profile), facts, compare=True
        )

    def generate(
        self,
        request: VideoRequest,
        output: Path | str,
        *,
        progress: ProgressCallback | None = None,
        profile_denoise: bool = False,
    ) -> VideoResult:
        """Raises `ContractError` before weights load for what cannot be done; `ExecutionError` for what failed."""
        check_request(request)
        with self._gate.admit() as number:
            recorder = PhaseRecorder(self.backends.device) if profile_denoise else None
            clock, watch = self._clock(number), RequestWatch(progress, device=self.backends.device, phases=recorder)
            outputs = plan_outputs(to_path(output), request.save_latents, profiled=profile_denoise)
            outputs.check(self.sink, self.latent_store)
            folder = denoiser_folder(request.mode)
            facts = self.model_facts(folder)
            self.backends.check(facts)
            self.backends.check_adapter(self.model_dir / folder)
            with watch.stage("input_preparation"):
                gathered = gather(request, facts, self.reader, self.backends.profile)
                foreseen = self.foresight.plan(request, gathered, facts)
                foreseen.require_fit()
            with self._execution(watch):
                latents, run = self._latents(request, gathered, facts, watch)
                with watch.stage("latent_export"):
                    self.latent_store.save(latents, outputs.latents)
                delivery = self._deliver(latents, gathered.plan.length, facts, outputs, watch)
            described = request_receipt(request, gathered.plan, facts)
            profile, trace = (None, None) if recorder is None else recorder.finish(run["weights"]["block_bytes"])
            run["planned"] = foreseen.describe()["chosen"]
            run["generation"] = generation_receipt(gathered.plan, watch.stages, profile)
            if trace is not None and outputs.trace is not None:
                write_receipt(trace, outputs.trace, what="trace")
            return self._finish({**described, **run}, delivery, outputs, watch, clock)

    def decode(
        self, latents_path: Path | str, output: Path | str, *, progress: ProgressCallback | None = None
    ) -> VideoResult:
        """Decode and deliver kept latents; the way back after a decode or an encoder that failed."""
        with self._gate.admit() as number:
            clock, watch = self._clock(number), RequestWatch(progress, device=self.backends.device)
            outputs = plan_outputs(to_path(output), to_path(latents_path))
            outputs.check(self.sink, None)
            latents = self.latent_store.load(outputs.latents)
            facts = self.model_facts(next(iter(self.denoisers)))
            length = saved_length(latents, facts.codec, what=str(latents_path))
            with self._execution(watch):
                delivery = self._deliver(latents, length, facts, outputs, watch)
            return self._finish(decode_receipt(latents.metadata, length), delivery, outputs, watch, clock)

    def close(self) -> None:
        """Release every model; idempotent. Refused while a request runs."""
        with self._gate.shut():
            self._release()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _latents(
        self, request: VideoRequest, gathered: Gathered, facts: ModelFacts, watch: RequestWatch
    ) -> tuple[Latents, dict[str, Any]]:
        with watch.stage("encoding"):
            conditioning = self._encode(request.prompt, gathered, facts, watch)
        with watch.stage("denoising"):
            with watch.stage("load"):
                kept = self.denoisers[gathered.plan.denoiser]
                kept.open()
            with kept.use() as denoiser:
                latents, attention = denoise(gathered.plan, conditioning, denoiser, self.backends.attention, watch)
                memory, adapter, fp8 = denoiser.memory(), denoiser.adapter, denoiser.fp8_linears
        return latents, self.backends.receipt(attention, memory, adapter, fp8)

    def _encode(self, prompt: str, gathered: Gathered, facts: ModelFacts, watch: RequestWatch) -> Conditioning:
        total = 1 + len(gathered.inputs)
        with watch.stage("text"), self.encoder.use() as encoder:
            text = encoder.encode(presentation(prompt, gathered.inputs))
        watch.progress("encoding", 1, total)
        conditions = Conditions()
        if gathered.inputs:
            with watch.stage("conditions"), self.codec.use() as codec:
                conditions = encode_conditions(gathered, facts, codec)
            watch.progress("encoding", total, total)
        return Conditioning(text=text, conditions=conditions)

    def _deliver(
        self, latents: Latents, length: ClipLength, facts: ModelFacts, outputs: Outputs, watch: RequestWatch
    ) -> Delivery:
        try:
            with watch.stage("media"), self.codec.use() as codec:
                clip = decode(latents, length, facts.codec, codec, watch)
                with watch.stage("video_decode_and_encode"):
                    return self.sink.write(clip, outputs.video)
        except (VflashError, RuntimeError, OSError) as error:
            if watch.cancellation is not None:
                raise watch.cancellation  # noqa: B904 - a sink may have wrapped it
            kind = type(error) if isinstance(error, VflashError) else DeliveryError
            raise kind(f"{error}\n{self._decode_hint(outputs)}") from error

    def _decode_hint(self, outputs: Outputs) -> str:
        options = {
            "model": self.model_dir,
            "device": self.backends.device,
            "dtype": str(self.backends.dtype).removeprefix("torch."),
            "latents": outputs.latents,
            "output": outputs.video,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return f"the latents are kept; decode them again with: {shlex.join(['vflash', 'decode', *words])}"

    def _finish(
        self,
        run: Mapping[str, Any],
        delivery: Delivery,
        outputs: Outputs,
        watch: RequestWatch,
        clock: RequestClock,
    ) -> VideoResult:
        if not outputs.keep_latents:
            outputs.latents.unlink(missing_ok=True)
        elapsed = time.perf_counter() - clock.start
        loading = self.initialization_seconds - clock.initialization_before
        stages = {
            "initialization_seconds": loading,
            "request_elapsed_seconds": elapsed - loading,
            "session_initialization_seconds": self.initialization_seconds,
            "request_index": clock.number,
            **watch.stages,
        }
        written = receipt(
            version=__version__,
            run={
                **run,
                **delivery_receipt(delivery, self.sink.name),
                "stages": stages,
                "memory": watch.peaks(),
            },
        )
        write_receipt(written, outputs.receipt)
        return VideoResult(path=outputs.video, elapsed_seconds=elapsed, stages=stages, receipt=written)

    @contextmanager
    def _execution(self, watch: RequestWatch) -> Iterator[None]:
        try:
            with self._gate.executing(watch):
                yield
        finally:
            if self._gate.failure is not None:
                self._release()

    def _clock(self, number: int) -> RequestClock:
        return RequestClock(number=number, start=time.perf_counter(), initialization_before=self.initialization_seconds)

    def _first_denoiser(self) -> str:
        profile = self.backends.profile
        return next(iter(self.denoisers)) if profile is None else profile.component

    def _lifetimes(self) -> tuple[Kept[Any], ...]:
        return (self.encoder, self.codec, *self.denoisers.values())

    def _release(self) -> None:
        with ExitStack() as every:  # one that fails to close does not keep the others
            for kept in self._lifetimes():
                every.callback(kept.close)


def check_request(request: VideoRequest) -> None:
    if not isinstance(request, VideoRequest):
        raise ContractError(f"request must be a VideoRequest, got {type(request).__name__}")
