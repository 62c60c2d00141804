"""What the bench measures, in order of worth. A section fills the `figures` that it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import torch
from attrs import frozen

from request_bench.engines import APPROXIMATE, EXACT, FASTEST_DECODER, OTHER_DECODERS, SWAPPED
from request_bench.figures import decode_figures
from request_bench.peer import Step, difference, open_peer, own_step, peer_step
from request_bench.run import Run
from vflash.domain.model_facts import read_model_facts
from vflash.domain.plan import plan_request
from vflash.engine import Engine
from vflash.stages.encode import Conditioning, Conditions
from vflash_ports.text_encoder import TextConditioning

Figures = dict[str, Any]


def exact(run: Run, figures: Figures) -> None:
    with run.engines.open(EXACT) as (engine, _):
        warm_and_check(run, engine, "exact", figures)
        run.request(engine, "exact", figures, "large", run.scale.large)


def approximate(run: Run, figures: Figures) -> None:
    """The released video decoder first, then the fastest one with the same encoder and denoiser."""
    with run.engines.open(APPROXIMATE) as (engine, models):
        warm_and_check(run, engine, "approximate", figures)
        run.request(engine, "approximate", figures, "large", run.scale.large)
        with run.engines.open_beside(APPROXIMATE, models, FASTEST_DECODER) as beside:
            run.request(beside, "approximate", figures, f"{FASTEST_DECODER} warm-up", run.scale.small)
            run.request(beside, "approximate", figures, FASTEST_DECODER, run.scale.large)


def peer(run: Run, figures: Figures) -> None:
    """Ours and diffusers' hold the same weights at once and take turns; small steps warm both up."""
    facts, component = read_model_facts(run.engines.model_dir), run.engines.model_dir / "transformer"
    backends, conditioning = run.engines.container(EXACT).backends(), random_conditioning(run, facts.denoiser.text_dim)
    module = open_peer(run.engines.opener(component), facts.denoiser, run.scale.device)
    with backends.open_denoiser(component, facts.denoiser) as denoiser:
        for name, canvas in (("small", run.scale.small), ("large", run.scale.large)):
            plan = plan_request(run.asked(canvas, steps=1), facts)
            ours: list[Step] = []
            theirs: list[Step] = []
            for _ in range(2):
                run.check_time(f"peer {name}")
                ours.append(own_step(plan, conditioning, denoiser, backends.attention))
                theirs.append(peer_step(module, plan, conditioning, facts.denoiser, run.scale.device))
            figures[name] = {
                "blocks": facts.denoiser.num_layers,
                "ours_s": [step.seconds for step in ours],
                "diffusers_s": [step.seconds for step in theirs],
                "times_faster": theirs[-1].seconds / ours[-1].seconds,
                "velocity_difference": difference(ours[-1], theirs[-1]),
            }
            run.save(f"peer {name}", ours[-1].seconds + theirs[-1].seconds)


def decoders(run: Run, figures: Figures) -> None:
    """The exact section's latents once more, through the other video decoders, and while FFmpeg is fed; nothing else is
    loaded."""
    for decoder, feed in (*((decoder, "file") for decoder in OTHER_DECODERS), (FASTEST_DECODER, "pipe")):
        with run.engines.open({**EXACT, "video_decoder": decoder, "media_video_input": feed}) as (engine, _):
            for name, source in (("warm-up", "warm-up"), ("large", "large")):
                decode = partial(engine.decode, run.latents("exact", source))
                run_name = f"{decoder} {feed} {name}"
                result, wall_s = run.timed(run_name, decode, like=f"decode {source}")
                figures[run_name] = decode_figures(result, wall_s)
                run.save(run_name, wall_s)


def swap(run: Run, figures: Figures) -> None:
    with run.engines.open(SWAPPED) as (engine, _):
        warm_and_check(run, engine, "swap", figures)
        run.request(engine, "swap", figures, "large", run.scale.large)
    for name in ("warm-up", "large"):
        figures[f"{name}_is_exact"] = run.same(("swap", name), ("exact", name))


def warm_and_check(run: Run, engine: Engine, section: str, figures: Figures) -> None:
    """Twice the small size, the second time under the profiler, with equal latents; then one evaluation of the large
    size, so that what is timed next meets nothing for the first time."""
    begun = perf_counter()
    engine.prepare()
    figures["opening_s"] = perf_counter() - begun
    run.request(engine, section, figures, "warm-up", run.scale.small)
    run.request(engine, section, figures, "profiled", run.scale.small, profiled=True)
    figures["repeat_is_equal"] = run.same((section, "warm-up"), (section, "profiled"))
    run.request(engine, section, figures, "large warm-up", run.scale.large, steps=1)


def random_conditioning(run: Run, width: int) -> Conditioning:
    embeds = torch.randn(run.scale.text_rows, width, generator=torch.Generator().manual_seed(2))
    tags = torch.ones(run.scale.text_rows, dtype=torch.int64)
    text = TextConditioning(embeds=embeds.to(run.scale.device, torch.bfloat16), tags=tags)
    return Conditioning(text=text, conditions=Conditions())


@frozen(kw_only=True)
class Section:
    """`expected_s` is what it takes up to its main figure, by the slower of two H200 hosts: it is not started where the
    deadline leaves less. Every later request is held against the last of its kind."""

    measure: Callable[[Run, Figures], None]
    expected_s: float


SECTIONS: Mapping[str, Section] = {
    "exact": Section(measure=exact, expected_s=95),
    "approximate": Section(measure=approximate, expected_s=75),
    "peer": Section(measure=peer, expected_s=30),
    "decoders": Section(measure=decoders, expected_s=35),
    "swap": Section(measure=swap, expected_s=95),
}
