"""The two halves of a request's way to latents, each with the models it opens: encode, denoise."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from vflash.domain.model_facts import ModelFacts
from vflash.domain.plan import Plan
from vflash.stages.backends import Backends
from vflash.stages.denoise import denoise
from vflash.stages.encode import Conditioning, Conditions, encode_conditions, presentation
from vflash.stages.gather import Gathered
from vflash.stages.models import Models
from vflash.stages.watch import RequestWatch
from vflash_ports.media import Latents


@frozen(kw_only=True, eq=False)
class Denoised:
    """`run` names what ran, for the receipt; `block_bytes` is what one block of the stack weighs."""

    latents: Latents
    run: dict[str, Any]
    block_bytes: int


def encode_request(
    prompt: str, gathered: Gathered, facts: ModelFacts, models: Models, watch: RequestWatch
) -> Conditioning:
    """Text through the encoder, then pictures and sounds through the VAEs."""
    total = 1 + len(gathered.inputs)
    with watch.stage("encoding"):
        with watch.stage("text"), models.encoder.use() as encoder:
            text = encoder.encode(presentation(prompt, gathered.inputs))
        watch.progress("encoding", 1, total)
        conditions = Conditions()
        if gathered.inputs:
            with watch.stage("conditions"), models.codec.use() as codec:
                conditions = encode_conditions(gathered, facts, codec)
            watch.progress("encoding", total, total)
    return Conditioning(text=text, conditions=conditions)


def denoise_request(
    plan: Plan, conditioning: Conditioning, models: Models, backends: Backends, watch: RequestWatch
) -> Denoised:
    """Loads the plan's denoiser if it is not there yet, and runs every evaluation."""
    with watch.stage("denoising"):
        kept = models.denoisers[plan.denoiser]
        with watch.stage("load"):
            kept.open()
        with kept.use() as denoiser:
            latents, attention = denoise(plan, conditioning, denoiser, backends.attention, watch)
            memory, adapter, fp8 = denoiser.memory(), denoiser.adapter, denoiser.fp8_linears
    run = backends.receipt(attention, memory, adapter, fp8)
    return Denoised(latents=latents, run=run, block_bytes=memory.block_bytes)
