"""The denoiser alone: a conditioning bundle in, latents out, the model kept between requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from attrs import asdict, define, evolve, field

from vflash.domain.fields import argument, to_bool, to_callback, to_path
from vflash.domain.model_facts import ModelFacts
from vflash.domain.native_receipts import SessionTimes, native_result
from vflash.domain.progress import ProgressCallback
from vflash.domain.receipts import generation_receipt
from vflash.stages.backends import Backends
from vflash.stages.bundle import from_bundle
from vflash.stages.clock import RequestClock
from vflash.stages.denoise import lay_out
from vflash.stages.foresee import Foresight
from vflash.stages.gate import Gate
from vflash.stages.keep_latents import keep_latents
from vflash.stages.models import Models
from vflash.stages.outputs import check_absent, trace_path, write_receipt
from vflash.stages.recorder import PhaseRecorder
from vflash.stages.steps import denoise_request
from vflash.stages.watch import RequestWatch
from vflash_ports.conditioning import ConditioningStore
from vflash_ports.event_log import EventLog, SilentLog
from vflash_ports.media import LatentStore


@define(kw_only=True, eq=False)
class DenoiseSession:
    """Serial requests on one loaded denoiser; the states are those of the complete pipeline."""

    model_dir: Path
    model_facts: Callable[[str], ModelFacts]
    backends: Backends
    foresight: Foresight
    models: Models
    conditioning_store: ConditioningStore
    latent_store: LatentStore
    log: EventLog = field(factory=SilentLog)
    _charged_seconds: float = field(default=0.0, init=False)
    _gate: Gate = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._gate = Gate(device=self.backends.device, log=self.log)

    @property
    def initialization_seconds(self) -> float:
        return self.models.open_seconds

    @property
    def request_count(self) -> int:
        return self._gate.requests

    def prepare(self) -> None:
        """Check every backend and load a denoiser: the profile's, else that of the text and keyframe modes."""
        with self._gate.maintain():
            folder = self.models.first_denoiser
            facts = self.model_facts(folder)
            self.backends.check(facts)
            self.backends.check_component(self.model_dir / folder, facts.denoiser)
            self.models.denoisers[folder].open()

    def generate(
        self,
        bundle: Path | str,
        output_latents: Path | str,
        *,
        progress_callback: ProgressCallback | None = None,
        profile_denoise: bool = False,
    ) -> dict[str, Any]:
        """One bundle -> latents at `output_latents`, which must not exist.

        Returns plain JSON values: `gpu`, `runtime`, `session`, `generation`. Raises `CheckpointError` for a bundle that
        was altered or made for another checkpoint, before anything loads.
        """
        folder = argument("bundle", to_path, bundle)
        output = argument("output_latents", to_path, output_latents)
        callback = argument("progress_callback", to_callback, progress_callback)
        profiled = argument("profile_denoise", to_bool, profile_denoise)
        with self._gate.admit() as number:
            self.latent_store.check(output)
            trace = trace_path(output) if profiled else None
            check_absent("trace", trace)
            recorder = PhaseRecorder(self.backends.device) if profiled else None
            watch = RequestWatch(callback, device=self.backends.device, phases=recorder, log=self.log)
            clock = RequestClock(number=number, models=self.models)
            sealed = self.conditioning_store.load(folder)
            facts = self.model_facts(self.models.first_denoiser)
            plan, conditioning = from_bundle(sealed, facts, self.model_dir, self.backends.dtype, self.backends.profile)
            facts = self.model_facts(plan.denoiser)
            self.backends.check(facts)
            self.backends.check_component(self.model_dir / plan.denoiser, facts.denoiser)
            layout = lay_out(plan, facts.denoiser, conditioning)
            self.foresight.plan_denoising(plan, layout, facts).require_fit()
            with self._gate.executing(watch, self.models.release):
                made = denoise_request(plan, conditioning, self.models, self.backends, watch)
                named = {**made.latents.metadata, "bundle_id": sealed.bundle_id}
                with watch.stage("latent_export"):
                    kept = keep_latents(evolve(made.latents, metadata=named), self.latent_store, output)
                kept.require_wanted("the denoising is complete, but ")
            session = self._times(clock)
            profile, events = (None, None) if recorder is None else recorder.finish(made.block_bytes)
            if events is not None and trace is not None:
                write_receipt(events, trace, what="trace")
            generation = generation_receipt(plan, watch.stages, profile)
            return native_result(
                gpu=describe_gpu(self.backends.device),
                runtime=self._runtime(made.run),
                session=asdict(session),
                generation={"bundle_id": sealed.bundle_id, "output_path": str(output), **generation},
            )

    def close(self) -> None:
        """Release the denoisers; idempotent. Refused while a request runs."""
        with self._gate.shut():
            self.models.release()

    def __enter__(self) -> DenoiseSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _times(self, clock: RequestClock) -> SessionTimes:
        """Loading is charged once, to the request that is first to use what was loaded."""
        opened = self.initialization_seconds
        charged, self._charged_seconds = opened - self._charged_seconds, opened
        return SessionTimes(
            request_index=clock.number,
            initialization_seconds=opened,
            initialization_charged_seconds=charged,
            request_wall_seconds=clock.elapsed_seconds - clock.loading_seconds,
        )

    def _runtime(self, run: Mapping[str, Any]) -> dict[str, Any]:
        weights, device = run["weights"], self.backends.device
        on_cuda = device.type == "cuda"
        return {
            **run["backends"],
            "profile": run["profile"],
            "adapter": run["adapter"],
            "attention_policy": run["attention"],
            "memory": {
                "weight_residency": self.backends.residency.name,
                "device_weight_bytes": weights["device_weight_bytes"],
                "pinned_host_weight_payload_bytes": weights["pinned_payload_bytes"],
                "pinned_host_allocated_bytes": weights["pinned_allocated_bytes"],
                "device_allocated_bytes": torch.cuda.memory_allocated(device) if on_cuda else None,
                "device_reserved_bytes": torch.cuda.memory_reserved(device) if on_cuda else None,
            },
        }


def describe_gpu(device: torch.device) -> dict[str, Any] | None:
    """Index, name and memory; no UUID leaves."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    return {"index": index, "name": properties.name, "memory_gib": round(properties.total_memory / 2**30, 1)}
