"""The memory plan of a request: every choice side by side, and the first change that makes an impossible one fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from attrs import evolve, frozen

from vflash.domain.choices import Linear, ModelPlacement, VideoDecoderChoice, WeightResidency
from vflash.domain.memory import MemoryOptions, Need, Workload, gib
from vflash.domain.plan import Plan
from vflash_ports.errors import ContractError
from vflash_ports.machine import MachineLimits

Judge = Callable[[Workload, MemoryOptions], Need]

FEW_TILES = 4
CHANGES: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("vae_tiles_at_once", str(FEW_TILES), {"tiles_at_once": FEW_TILES}),
    ("weight_residency", "block-ring", {"weight_residency": WeightResidency.BLOCK_RING}),
    ("model_placement", "swap", {"placement": ModelPlacement.SWAP}),
    ("weight_residency", "resident", {"weight_residency": WeightResidency.RESIDENT}),
    ("model_placement", "together", {"placement": ModelPlacement.TOGETHER}),
    ("model_lifetime", "per-request", {"keep": False}),
    ("linear", "fp8-weight-only (approximate)", {"linear": Linear.FP8_WEIGHT_ONLY}),
    ("linear", "w8a8 (approximate)", {"linear": Linear.W8A8}),
)
"""In the order they are advised: what frees the device, then what frees the host (a ring's stack and swapped models
wait there), and what costs time before what costs precision."""


@frozen(kw_only=True)
class MemoryPlan:
    """`chosen` is what the settings say; `choices` every weight residency and linear beside it; `advice` is empty where
    the chosen one fits."""

    plan: Plan
    work: Workload
    limits: MachineLimits
    chosen: Need
    choices: tuple[Need, ...]
    advice: str = ""

    def require_fit(self) -> None:
        """Raises `ContractError`, with the numbers and the cure, before anything loads; never a smaller request."""
        if self.chosen.fits:
            return
        raise ContractError(
            f"{self.plan.canvas} for {self.work.rows.total} packed rows does not fit: "
            f"{'; '.join(self.chosen.obstacles)}. {self.advice}"
        )

    def describe(self) -> dict[str, Any]:
        """Plain JSON values, bytes throughout."""
        rows = self.work.rows
        return {
            "canvas": {"width": self.plan.canvas.width, "height": self.plan.canvas.height},
            "model_frames": self.plan.length.model_frames,
            "evaluations": self.plan.schedule.evaluations,
            "rows": {
                "text": rows.text,
                "condition": rows.condition,
                "target_audio": rows.target_audio,
                "target_video": rows.target_video,
                "total": rows.total,
            },
            "machine": {
                "device": self.limits.device,
                "device_bytes": self.limits.device_bytes,
                "host_bytes": self.limits.host_bytes,
            },
            "chosen": describe_need(self.chosen),
            "choices": [describe_need(choice) for choice in self.choices],
            "advice": self.advice,
        }


def describe_need(found: Need) -> dict[str, Any]:
    options = found.options
    return {
        "weight_residency": str(options.weight_residency),
        "linear": str(options.linear),
        "model_placement": str(options.placement),
        "model_lifetime": "keep" if options.keep else "per-request",
        "vae_tiles_at_once": options.tiles_at_once,
        "fits": found.fits,
        "obstacles": list(found.obstacles),
        "device_bytes": found.device,
        "device_bytes_by_stage": dict(found.stages),
        "stack_bytes_on_device": found.weights_on_device,
        "pinned_bytes": found.pinned,
        "host_bytes": found.host,
        "bytes_to_read": found.read,
    }


def every_choice(chosen: MemoryOptions) -> tuple[MemoryOptions, ...]:
    """Each weight residency with each linear, the rest as chosen."""
    return tuple(
        evolve(chosen, weight_residency=residence, linear=linear) for residence in WeightResidency for linear in Linear
    )


def first_change(work: Workload, chosen: MemoryOptions, judge: Judge, smaller: Iterable[tuple[str, Workload]]) -> str:
    """The fewest changes of settings that fit, else the first of the `smaller` requests that does, under these settings
    or under the fewest changes of them, in words."""
    settings = tuple(_changed(chosen))
    for words, changed in settings:
        if judge(work, changed).fits:
            return f"What makes it fit: {words}."
    requests = tuple(smaller)
    for words, less in requests:
        if judge(less, chosen).fits:
            return f"No change of settings makes it fit; {words} would."
    for words, less in requests:
        for change, changed in settings:
            if judge(less, changed).fits:
                return f"No change of settings alone makes it fit; {words} with {change} would."
    return _nothing([judge(work, changed) for changed in (chosen, *(changed for _, changed in settings))])


def first_decoding_change(work: Workload, chosen: MemoryOptions, judge: Judge) -> str:
    """For latents that are only decoded: fewer tiles at once, else with the VAE's own decoder, which copies no weights
    and runs anywhere, in words."""
    own = evolve(work, video_decoder=VideoDecoderChoice.DIFFUSERS)
    counts = [chosen.tiles_at_once, *(tiles for tiles in (FEW_TILES, 2, 1) if tiles < chosen.tiles_at_once)]
    tried: list[Need] = []
    for decoding in (work, own) if own != work else (work,):
        for tiles in counts:
            tried.append(judge(decoding, evolve(chosen, tiles_at_once=tiles)))
            if tried[-1].fits:
                changes = [f"vae_tiles_at_once {tiles}"] if tiles < chosen.tiles_at_once else []
                changes += ["video_decoder diffusers (other pixels)"] if decoding is own else []
                return f"What makes it fit: {' and '.join(changes)}."
    return _nothing(tried)


def _nothing(every: Sequence[Need]) -> str:
    device, host = (min(getattr(found, place) for found in every) for place in ("device", "host"))
    return f"Nothing makes it fit here: it needs at least {gib(device)} on the device, {gib(host)} of host."


def _changed(chosen: MemoryOptions) -> Iterator[tuple[str, MemoryOptions]]:
    """Single changes first, then two at once, and so on; none that changes nothing or contradicts itself."""
    useful = [change for change in CHANGES if any(getattr(chosen, name) != value for name, value in change[2].items())]
    if chosen.tiles_at_once < FEW_TILES:
        useful = [change for change in useful if change[0] != "vae_tiles_at_once"]
    for count in range(1, len(useful) + 1):
        for changes in combinations(useful, count):
            if len({name for name, _, _ in changes}) == count:
                values = {name: value for _, _, change in changes for name, value in change.items()}
                yield " and ".join(f"{name} {word}" for name, word, _ in changes), evolve(chosen, **values)
