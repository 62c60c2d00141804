"""The main path: request -> inputs -> conditioning -> latents -> clip -> file. It names no backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from attrs import define, field

from vflash import __version__
from vflash.domain.delivery import AudioDelivery
from vflash.domain.duration import ClipLength
from vflash.domain.fields import argument, to_bool, to_callback, to_path
from vflash.domain.memory_plan import MemoryPlan, describe_need
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
from vflash.domain.results import EncodeResult, VideoResult
from vflash.stages.backends import Backends, check_device
from vflash.stages.bundle import to_bundle
from vflash.stages.clock import RequestClock
from vflash.stages.decode import saved_length
from vflash.stages.deliver import deliver, way_back
from vflash.stages.delivery_profiles import DeliveryProfiles, delivery_profiles
from vflash.stages.encode import Conditioning
from vflash.stages.foresee import Foresight
from vflash.stages.gate import Gate
from vflash.stages.gather import Gathered, gather
from vflash.stages.keep_latents import KeptLatents, keep_latents
from vflash.stages.models import Models
from vflash.stages.outputs import Outputs, plan_outputs, write_receipt
from vflash.stages.recorder import PhaseRecorder
from vflash.stages.reuse import ConditioningReuseScope, ReuseCache, content_digest, to_scope
from vflash.stages.steps import denoise_request, encode_request
from vflash.stages.watch import RequestWatch
from vflash_ports.conditioning import ConditioningStore
from vflash_ports.errors import ContractError
from vflash_ports.event_log import EventLog, SilentLog
from vflash_ports.media import Delivery, Latents, LatentStore, MediaSink, ReferenceReader


@define(kw_only=True, eq=False)
class Engine:
    """One resident pipeline: serial requests, models kept or released by their `Kept` lifetimes. `decoding` are the
    words that tell `vflash decode` these settings."""

    model_dir: Path
    model_facts: Callable[[str], ModelFacts]
    backends: Backends
    foresight: Foresight
    models: Models
    reader: ReferenceReader
    sink: MediaSink
    latent_store: LatentStore
    conditioning_store: ConditioningStore
    decoding: Sequence[str]
    log: EventLog = field(factory=SilentLog)
    _reuse: ReuseCache = field(factory=ReuseCache, init=False)
    _gate: Gate = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._gate = Gate(device=self.backends.device, log=self.log)

    @property
    def request_count(self) -> int:
        return self._gate.requests

    @property
    def initialization_seconds(self) -> float:
        """All model opening so far; outside every request's own time only when `prepare` was called first."""
        return self.models.open_seconds

    def prepare(self) -> None:
        """Check every backend, then load what is kept between requests (of the denoisers the profile's, else that of
        text and keyframe modes)."""
        with self._gate.maintain():
            self._checked_facts(self.models.first_denoiser)
            self.models.open_kept()

    def plan(self, request: VideoRequest) -> MemoryPlan:
        """What the request needs and whether it fits; reads the inputs and the weight headers, loads nothing.

        Raises what `generate` would; but a linear or residency that cannot run here is an obstacle of the plan.
        """
        check_request(request)
        folder = denoiser_folder(request.mode)
        facts = self.model_facts(folder)
        check_device(self.backends.device)
        with self._gate.on_device():
            self.backends.kernels.check(self.backends.device, self.backends.dtype)
            self.backends.check_codec(self.model_dir)
            self.backends.check_component(self.model_dir / folder, facts.denoiser)
            gathered = gather(request, facts, self.reader, self.backends.profile)
            return self.foresight.plan(request, gathered, facts, compare=True)

    def generate(
        self,
        request: VideoRequest,
        output_path: Path | str,
        *,
        progress: ProgressCallback | None = None,
        profile_denoise: bool = False,
        conditioning_reuse_scope: ConditioningReuseScope | None = None,
    ) -> VideoResult:
        """Raises `ContractError` before weights load for what cannot be done; `ExecutionError` for what failed."""
        check_request(request)
        video = argument("output_path", to_path, output_path)
        callback = argument("progress", to_callback, progress)
        profiled = argument("profile_denoise", to_bool, profile_denoise)
        scope = argument("conditioning_reuse_scope", to_scope, conditioning_reuse_scope)
        with self._gate.admit() as number:
            recorder = PhaseRecorder(self.backends.device) if profiled else None
            clock = RequestClock(number=number, models=self.models)
            watch = RequestWatch(callback, device=self.backends.device, phases=recorder, log=self.log)
            outputs = plan_outputs(video, request.save_latents, profiled=profiled)
            outputs.check(self.sink, self.latent_store)
            facts = self._checked_facts(denoiser_folder(request.mode))
            gathered, foreseen = self._gather(request, facts, watch, self.foresight.plan)
            with self._gate.executing(watch, self._release):
                conditioning = self._conditioning(request, gathered, facts, watch, scope)
                made = denoise_request(gathered.plan, conditioning, self.models, self.backends, watch)
                with watch.stage("latent_export"):
                    kept = keep_latents(made.latents, self.latent_store, outputs.latents)
                profile, trace = (None, None) if recorder is None else recorder.finish(made.block_bytes)
                profiles = delivery_profiles(request, gathered)
                delivery = self._deliver(made.latents, gathered.plan.length, facts, outputs, kept, watch, profiles)
            run = {
                **request_receipt(request, gathered.plan, facts),
                **made.run,
                "planned": describe_need(foreseen.chosen),
                "conditioning_reuse": self._reuse.status,
                "generation": generation_receipt(gathered.plan, watch.stages, profile),
            }
            result = self._finish(run, delivery, outputs, kept, watch, clock)
            if trace is not None and outputs.trace is not None:
                write_receipt(trace, outputs.trace, what="trace")
            if outputs.keep_latents:
                kept.require_wanted(f"the video {outputs.video} is complete, but ")
            return result

    def encode(
        self, request: VideoRequest, bundle_path: Path | str, *, progress: ProgressCallback | None = None
    ) -> EncodeResult:
        """Encode only, into a sealed folder at `bundle_path`, which must not exist: what `denoise` goes on from."""
        check_request(request)
        folder = argument("bundle_path", to_path, bundle_path)
        callback = argument("progress", to_callback, progress)
        with self._gate.admit() as number:
            clock = RequestClock(number=number, models=self.models)
            watch = RequestWatch(callback, device=self.backends.device, log=self.log)
            self.conditioning_store.check(folder)
            facts = self.model_facts(denoiser_folder(request.mode))
            check_device(self.backends.device)
            # A denoiser that is kept loaded is there while the encoder works.
            foresee = self.foresight.plan if self.models.denoiser_is_open else self.foresight.plan_encoding
            gathered, _ = self._gather(request, facts, watch, foresee)
            with self._gate.executing(watch, self._release):
                conditioning = self._conditioning(request, gathered, facts, watch, None)
                sealed = to_bundle(request, gathered.plan, conditioning, self.model_dir, self.backends.dtype)
                bundle_id = self.conditioning_store.save(sealed, folder)
            return EncodeResult(
                path=folder, bundle_id=bundle_id, elapsed_seconds=clock.elapsed_seconds, stages=watch.stages
            )

    def decode(
        self,
        latents_path: Path | str,
        output_path: Path | str,
        *,
        audio_delivery_profile: str = AudioDelivery.UNCHANGED,
        progress: ProgressCallback | None = None,
    ) -> VideoResult:
        """Decode and deliver kept latents; the way back after a decode or an encoder that failed."""
        source = argument("latents_path", to_path, latents_path)
        video = argument("output_path", to_path, output_path)
        callback = argument("progress", to_callback, progress)
        profiles = DeliveryProfiles(audio=argument("audio_delivery_profile", AudioDelivery, audio_delivery_profile))
        with self._gate.admit() as number:
            clock = RequestClock(number=number, models=self.models)
            watch = RequestWatch(callback, device=self.backends.device, log=self.log)
            outputs = plan_outputs(video, source)
            outputs.check(self.sink, None)
            latents = self.latent_store.load(outputs.latents)
            facts = self.model_facts(self.models.first_denoiser)
            length = saved_length(latents, facts.codec, what=str(source))
            self.backends.check_codec(self.model_dir)
            # It knows of the VAEs alone, not of what other models that are loaded hold.
            if not (self.models.encoder.is_open or self.models.denoiser_is_open):
                self.foresight.require_room_to_decode(latents, facts)
            with self._gate.executing(watch, self._release):
                kept = KeptLatents(wanted=source, path=source)
                delivery = self._deliver(latents, length, facts, outputs, kept, watch, profiles)
            run = decode_receipt(latents.metadata, length, self.backends.codec_receipt())
            return self._finish(run, delivery, outputs, kept, watch, clock)

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

    def _checked_facts(self, folder: str) -> ModelFacts:
        """Of a checkpoint whose denoiser every chosen backend can run, by what is stored, and whose latents the chosen
        decoder can decode."""
        facts = self.model_facts(folder)
        self.backends.check(facts)
        self.backends.check_codec(self.model_dir)
        self.backends.check_component(self.model_dir / folder, facts.denoiser)
        return facts

    def _deliver(
        self,
        latents: Latents,
        length: ClipLength,
        facts: ModelFacts,
        outputs: Outputs,
        kept: KeptLatents,
        watch: RequestWatch,
        profiles: DeliveryProfiles,
    ) -> Delivery:
        return deliver(
            latents,
            length,
            facts.codec,
            outputs.video,
            profiles,
            watch,
            codec=self.models.codec,
            sink=self.sink,
            way_back=way_back(kept, outputs.video, profiles, self.decoding),
        )

    def _finish(
        self,
        run: Mapping[str, Any],
        delivery: Delivery,
        outputs: Outputs,
        kept: KeptLatents,
        watch: RequestWatch,
        clock: RequestClock,
    ) -> VideoResult:
        if not outputs.keep_latents:
            kept = kept.discard()
        elapsed, loading = clock.elapsed_seconds, clock.loading_seconds
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
                "saved_latents": kept.describe(),
                "stages": stages,
                "memory": watch.peaks(),
            },
        )
        write_receipt(written, outputs.receipt)
        return VideoResult(path=outputs.video, elapsed_seconds=elapsed, stages=stages, receipt=written)

    def _gather(
        self,
        request: VideoRequest,
        facts: ModelFacts,
        watch: RequestWatch,
        foresee: Callable[[VideoRequest, Gathered, ModelFacts], MemoryPlan],
    ) -> tuple[Gathered, MemoryPlan]:
        with watch.stage("input_preparation"):
            gathered = gather(request, facts, self.reader, self.backends.profile)
            foreseen = foresee(request, gathered, facts)
            foreseen.require_fit()
        return gathered, foreseen

    def _conditioning(
        self,
        request: VideoRequest,
        gathered: Gathered,
        facts: ModelFacts,
        watch: RequestWatch,
        scope: ConditioningReuseScope | None,
    ) -> Conditioning:
        def encode() -> Conditioning:
            return encode_request(request.prompt, gathered, facts, self.models, watch)

        digest = "" if scope is None else content_digest(request.prompt, gathered)
        return self._reuse.conditioning(scope, digest, encode)

    def _release(self) -> None:
        self._reuse.clear()
        self.models.release()


def check_request(request: VideoRequest) -> None:
    if not isinstance(request, VideoRequest):
        raise ContractError(f"request must be a VideoRequest, got {type(request).__name__}")
