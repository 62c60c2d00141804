"""Where the bytes of a pipeline lie under each choice, and whether a machine has room for them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from attrs import evolve, field, frozen

from vflash.domain.choices import Linear, ModelPlacement, VideoDecoderChoice, WeightResidency
from vflash.domain.footprint import (
    FLOAT32,
    Pixels,
    Rows,
    block_bytes,
    decode_bytes,
    denoise_bytes,
    encode_bytes,
    table_bytes,
    text_bytes,
)
from vflash.domain.model_facts import ModelFacts
from vflash_ports.machine import MachineLimits

GIB = 2**30
DEVICE_MARGIN = GIB // 2
"""Library workspaces and what the allocator cannot use."""
PROCESS_BYTES = 3 * GIB
"""Python, torch and the CUDA libraries in host memory, before any weight."""
ARENA_SLACK = 1.04
"""Pinned slabs over what they hold; the released block sizes leave 3 %."""
DELIVERY_COPIES = 3
"""Of the clip of frames that the video decoder hands on: in its hands, in the quantiser's, in the sink's."""


class Half(StrEnum):
    """A request that is only encoded, or latents that are only decoded: nothing else is loaded."""

    ENCODE = "encode"
    DECODE = "decode"


@frozen(kw_only=True)
class MemoryOptions:
    """What a user can choose that moves bytes. `keep`: models stay loaded for the next request; `tiles_at_once` of the
    video decoder."""

    weight_residency: WeightResidency
    linear: Linear
    placement: ModelPlacement
    keep: bool
    tiles_at_once: int = 1


@frozen(kw_only=True)
class PartBytes:
    """What a part weighs once loaded, the largest piece that moves at once, and what is read from disk for it."""

    loaded: int
    largest: int
    read: int


NOTHING = PartBytes(loaded=0, largest=0, read=0)


@frozen(kw_only=True)
class ModelBytes:
    """A checkpoint's parts by its headers. `projections` is the AdaLN weights: read once a schedule, then dropped."""

    encoder: PartBytes
    codec: PartBytes
    auxiliary: PartBytes
    projections: PartBytes
    stack_read: int
    encoder_hidden: int
    encoder_ffn: int


NO_MODEL = ModelBytes(
    encoder=NOTHING,
    codec=NOTHING,
    auxiliary=NOTHING,
    projections=NOTHING,
    stack_read=0,
    encoder_hidden=0,
    encoder_ffn=0,
)


@frozen(kw_only=True)
class Workload:
    """One request on one checkpoint, in the sizes that memory follows from. `adapter_bytes` ride with the stack;
    `attention_bytes` stay on the device through every stage. `input_bytes` are pixels and waveforms from files, in host
    memory. `half`: where it is not the whole request."""

    facts: ModelFacts
    model: ModelBytes
    rows: Rows
    pixels: Pixels
    evaluations: int
    dtype_bytes: int
    chunk_rows: int
    on_cpu: bool
    video_decoder: VideoDecoderChoice = VideoDecoderChoice.DIFFUSERS
    adapter_bytes: int = 0
    attention_bytes: int = 0
    input_bytes: int = 0
    half: Half | None = None


@frozen(kw_only=True)
class Need:
    """Bytes under one choice. `stages` are the device peaks; `obstacles` say why this machine cannot, if it cannot."""

    options: MemoryOptions
    stages: Mapping[str, int]
    weights_on_device: int
    pinned: int
    host: int
    read: int
    obstacles: tuple[str, ...] = field(default=())

    @property
    def device(self) -> int:
        return max(self.stages.values())

    @property
    def widest(self) -> str:
        return max(self.stages, key=lambda name: self.stages[name])

    @property
    def fits(self) -> bool:
        return not self.obstacles


def need(work: Workload, options: MemoryOptions) -> Need:
    """The peaks of a first request and of any later one: with `keep`, of a pipeline that has everything loaded."""
    stack = 0 if work.half else work.facts.denoiser.num_layers * _block(work, options)
    resident = options.weight_residency is WeightResidency.RESIDENT
    on_device = stack if resident else min(stack, 2 * _block(work, options))
    pinned = 0 if resident else int(stack * ARENA_SLACK)
    stages = {name: size + work.attention_bytes for name, size in _stages(work, options, on_device).items()}
    model = work.model
    parts = (model.encoder, model.codec, model.auxiliary, model.projections)
    return Need(
        options=options,
        stages=stages,
        weights_on_device=on_device,
        pinned=0 if work.on_cpu else pinned,
        host=_host(work, options, pinned, max(stages.values())),
        read=model.stack_read + sum(part.read for part in parts),
    )


def judge(found: Need, limits: MachineLimits, unsupported: tuple[str, ...] = ()) -> Need:
    """`found` with what stands in its way on a machine; `unsupported` is what the backends themselves refuse."""
    obstacles = list(unsupported)
    if limits.device_bytes is not None and found.device + DEVICE_MARGIN > limits.device_bytes:
        obstacles.append(
            f"{limits.device} has {gib(limits.device_bytes)}, {found.widest} needs {gib(found.device + DEVICE_MARGIN)}"
        )
    if found.host > limits.host_bytes:
        obstacles.append(f"the host has {gib(limits.host_bytes)}, {gib(found.host)} are needed")
    return evolve(found, obstacles=tuple(obstacles))


def gib(byte_count: int) -> str:
    return f"{byte_count / GIB:.1f} GiB" if byte_count >= GIB // 10 else f"{byte_count / 2**20:.1f} MiB"


def _block(work: Workload, options: MemoryOptions) -> int:
    adapter = work.adapter_bytes // work.facts.denoiser.num_layers
    return adapter + block_bytes(work.facts.denoiser, options.linear, work.dtype_bytes)


def _stages(work: Workload, options: MemoryOptions, stack: int) -> dict[str, int]:
    """Device bytes at the widest moment of each stage."""
    model, facts = work.model, work.facts
    swap = options.placement is ModelPlacement.SWAP
    denoiser = stack + model.auxiliary.loaded + table_bytes(facts.denoiser, work.evaluations, work.dtype_bytes)
    encoder = model.encoder.largest if swap else model.encoder.loaded
    text = encoder + text_bytes(
        work.rows, hidden=model.encoder_hidden, ffn=model.encoder_ffn, dtype_bytes=work.dtype_bytes
    )
    pictures = model.codec.loaded + encode_bytes(facts.codec, work.pixels) if work.pixels.reference_frames else 0
    run = denoise_bytes(
        facts.denoiser, work.rows, options.linear, dtype_bytes=work.dtype_bytes, chunk_rows=work.chunk_rows
    )
    together = options.keep and not swap
    if work.half is Half.ENCODE:
        return {"encode": max(text + model.codec.loaded, pictures + encoder) if together else max(text, pictures)}
    denoise = denoiser + max(run, 2 * model.projections.largest)
    decode = model.codec.loaded + decode_bytes(
        facts.codec,
        work.pixels,
        tiles_at_once=options.tiles_at_once,
        dtype_bytes=work.dtype_bytes,
        decoder=work.video_decoder,
    )
    if work.half is Half.DECODE:
        return {"decode": decode}
    if together:
        encode = max(text + model.codec.loaded, pictures + encoder)
        return {
            "encode": encode + denoiser,
            "denoise": denoise + encoder + model.codec.loaded,
            "decode": decode + encoder + denoiser,
        }
    kept = denoiser if options.keep else 0
    return {"encode": max(text, pictures) + kept, "denoise": denoise, "decode": decode + kept}


def _host(work: Workload, options: MemoryOptions, arena: int, device: int) -> int:
    """The process at its largest; the page cache of mapped weight files is not counted, it can be given up."""
    model = work.model
    clip_frames = 0 if work.half is Half.ENCODE else work.facts.codec.clip_frames
    values = 3 * work.pixels.width * work.pixels.height * clip_frames
    # From a device, frames come to the host as bytes.
    frames = DELIVERY_COPIES * values * (FLOAT32 if work.on_cpu else 1)
    if work.on_cpu:
        return PROCESS_BYTES + work.input_bytes + device + arena + frames
    # Weights on their way to the device pass straight from the mapped files; only what waits is held.
    waiting = options.keep and options.placement is ModelPlacement.SWAP
    masters = model.encoder.loaded + model.codec.loaded if waiting else 0
    return PROCESS_BYTES + work.input_bytes + masters + arena + frames
