"""Foresee: the memory plan of a gathered request, from headers, formulas and the machine's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from attrs import define, evolve, field

from vflash.domain.canvas import MAX_ASPECT, Canvas, round_to
from vflash.domain.choices import VideoDecoderChoice
from vflash.domain.duration import MIN_DURATION_S
from vflash.domain.footprint import NO_ROWS, Pixels, Rows
from vflash.domain.memory import (
    NO_MODEL,
    NOTHING,
    Half,
    MemoryOptions,
    ModelBytes,
    Need,
    Workload,
    judge,
    need,
)
from vflash.domain.memory_plan import MemoryPlan, every_choice, first_change, first_decoding_change
from vflash.domain.model_facts import ModelFacts
from vflash.domain.packing import PackedLayout
from vflash.domain.plan import Plan, replan
from vflash.domain.request import VideoRequest
from vflash.model.load import stack_bytes
from vflash.stages.backends import Backends, check_device
from vflash.stages.gather import Gathered, tensors_of
from vflash.stages.inventory import weigh, weigh_codec
from vflash.stages.planned_rows import count_rows, planned_pixels, planned_rows
from vflash_ports.errors import ContractError
from vflash_ports.linear import LinearExecution
from vflash_ports.machine import MachineReader
from vflash_ports.media import Latents
from vflash_ports.residency import Residency
from vflash_ports.weights import WeightOpener


@define(kw_only=True, eq=False)
class Foresight:
    """Plans memory for one pipeline's settings. `residencies` and `linears` make all there are, by name."""

    model_dir: Path
    backends: Backends
    residencies: Mapping[str, Callable[[], Residency]]
    linears: Mapping[str, Callable[[], LinearExecution]]
    options: MemoryOptions
    limits: MachineReader
    _weighed: dict[str, ModelBytes] = field(factory=dict, init=False)
    _held: dict[str, int] = field(factory=dict, init=False)

    def plan(
        self, request: VideoRequest, gathered: Gathered, facts: ModelFacts, *, compare: bool = False
    ) -> MemoryPlan:
        """Headers are read once a pipeline; nothing is loaded. `compare` judges every other choice as well."""
        work = self.workload(request, gathered, facts)
        return self._judged(gathered.plan, work, facts, self._smaller(request, gathered, facts), compare)

    def plan_encoding(self, request: VideoRequest, gathered: Gathered, facts: ModelFacts) -> MemoryPlan:
        """Of a request that ends with its conditioning: no denoiser, no frames."""

        def encoding(work: Workload) -> Workload:
            model = evolve(work.model, auxiliary=NOTHING, projections=NOTHING, stack_read=0)
            return evolve(work, model=model, half=Half.ENCODE, attention_bytes=0)

        smaller = ((words, encoding(less)) for words, less in self._smaller(request, gathered, facts))
        work = encoding(self.workload(request, gathered, facts))
        return self._judged(gathered.plan, work, facts, smaller, compare=False)

    def plan_denoising(self, plan: Plan, layout: PackedLayout, facts: ModelFacts) -> MemoryPlan:
        """Of a session that only denoises: no encoder, no VAE, no pixels."""
        work = self._workload(plan, count_rows(layout), Pixels(width=0, height=0), facts)
        work = evolve(work, model=evolve(work.model, encoder=NOTHING, codec=NOTHING))
        return self._judged(plan, work, facts, iter(()), compare=False)

    def require_room_to_decode(self, latents: Latents, facts: ModelFacts) -> None:
        """With nothing but the VAEs loaded. Raises `ContractError`, with the numbers and the cure, where kept latents
        cannot be decoded here."""
        height, width = (side * facts.codec.spatial_ratio for side in latents.video.shape[3:])
        codec = weigh_codec(self.backends.weights, self.model_dir, self.backends.dtype)
        work = self._sized(
            facts,
            rows=NO_ROWS,
            pixels=Pixels(width=width, height=height),
            model=evolve(NO_MODEL, codec=codec),
            evaluations=0,
            half=Half.DECODE,
        )
        limits = self.limits(self.backends.device)

        def judged(work: Workload, options: MemoryOptions) -> Need:
            return judge(need(work, options), limits)

        found = judged(work, self.options)
        if not found.fits:
            advice = first_decoding_change(work, self.options, judged)
            raise ContractError(f"decoding {width}x{height} does not fit: {'; '.join(found.obstacles)}. {advice}")

    def _judged(
        self, plan: Plan, work: Workload, facts: ModelFacts, smaller: Iterator[tuple[str, Workload]], compare: bool
    ) -> MemoryPlan:
        check_device(self.backends.device)
        limits = self.limits(self.backends.device)
        refused: dict[tuple[str, str], tuple[str, ...]] = {}

        def unsupported(options: MemoryOptions) -> tuple[str, ...]:
            choice = (options.weight_residency, options.linear)
            if choice not in refused:
                refused[choice] = self._unsupported(plan.denoiser, options, facts)
            return refused[choice]

        def judged(work: Workload, options: MemoryOptions) -> Need:
            return judge(need(work, options), limits, () if work.half else unsupported(options))

        chosen = judged(work, self.options)
        return MemoryPlan(
            plan=plan,
            work=work,
            limits=limits,
            chosen=chosen,
            choices=tuple(judged(work, options) for options in every_choice(self.options) if compare),
            advice="" if chosen.fits else first_change(work, self.options, judged, smaller),
        )

    def workload(self, request: VideoRequest, gathered: Gathered, facts: ModelFacts) -> Workload:
        rows = planned_rows(request.prompt, gathered, facts)
        work = self._workload(gathered.plan, rows, planned_pixels(gathered), facts)
        return evolve(work, input_bytes=sum(tensor.nbytes for item in gathered.inputs for tensor in tensors_of(item)))

    def _workload(self, plan: Plan, rows: Rows, pixels: Pixels, facts: ModelFacts) -> Workload:
        work = self._sized(
            facts,
            rows=rows,
            pixels=pixels,
            model=self._model(plan.denoiser),
            evaluations=plan.schedule.evaluations,
        )
        adapter = self.backends.adapter
        return evolve(
            work,
            attention_bytes=self._attention(plan.denoiser, facts),
            adapter_bytes=0 if adapter is None else adapter.path.stat().st_size,
        )

    def _sized(
        self,
        facts: ModelFacts,
        *,
        rows: Rows,
        pixels: Pixels,
        model: ModelBytes,
        evaluations: int,
        half: Half | None = None,
    ) -> Workload:
        """Under this pipeline's settings."""
        return Workload(
            facts=facts,
            model=model,
            rows=rows,
            pixels=pixels,
            evaluations=evaluations,
            half=half,
            dtype_bytes=self.backends.dtype.itemsize,
            chunk_rows=self.backends.ffn_chunk_rows,
            on_cpu=self.backends.device.type == "cpu",
            video_decoder=VideoDecoderChoice(self.backends.video_decoder),
        )

    def _model(self, denoiser: str) -> ModelBytes:
        if denoiser not in self._weighed:
            weights: WeightOpener = self.backends.weights
            self._weighed[denoiser] = weigh(weights, self.model_dir, denoiser, self.backends.dtype)
        return self._weighed[denoiser]

    def _attention(self, denoiser: str, facts: ModelFacts) -> int:
        if denoiser not in self._held:
            self._held[denoiser] = self.backends.held_by_attention(facts)
        return self._held[denoiser]

    def _unsupported(self, denoiser: str, options: MemoryOptions, facts: ModelFacts) -> tuple[str, ...]:
        """What the named backends refuse on this device and of these weights, in their own words."""
        device, dtype = self.backends.device, self.backends.dtype
        try:
            linear = self.linears[options.linear]()
            linear.check(device, dtype)
            self.backends.check_stored(self.model_dir / denoiser, facts.denoiser, linear)
            self.residencies[options.weight_residency]().check(device, stack_bytes(facts.denoiser, linear, dtype))
        except ContractError as error:
            return (str(error),)
        return ()

    def _smaller(self, request: VideoRequest, gathered: Gathered, facts: ModelFacts) -> Iterator[tuple[str, Workload]]:
        """Shorter clips, then smaller legal canvases of nearly the same shape."""
        plan = gathered.plan
        for duration_s in range(request.duration_s - 1, MIN_DURATION_S - 1, -1):
            yield f"a duration of {duration_s} s", self._replanned(request, gathered, facts, duration_s, plan.canvas)
        for tenths in range(9, 1, -1):
            width, height = (
                round_to(side * tenths / 10, facts.canvas_multiple) for side in (plan.canvas.width, plan.canvas.height)
            )
            # Rounding must not push a long shape over the limit of its aspect.
            canvas = Canvas(width=min(width, MAX_ASPECT * height), height=min(height, MAX_ASPECT * width))
            if canvas.pixels >= plan.canvas.pixels:
                continue
            yield f"a canvas of {canvas}", self._replanned(request, gathered, facts, request.duration_s, canvas)

    def _replanned(
        self, request: VideoRequest, gathered: Gathered, facts: ModelFacts, duration_s: int, canvas: Canvas
    ) -> Workload:
        plan = replan(gathered.plan, facts, duration_s=duration_s, canvas=canvas)
        return self.workload(request, evolve(gathered, plan=plan), facts)
