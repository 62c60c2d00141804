"""What the bench measures, in order of worth. A section fills the `figures` that it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import torch
from attrs import frozen

from request_bench.engines import APPROXIMATE, EXACT, SWAPPED
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
        for name in ("first", "later"):
            run.request(engine, "exact", figures, name, run.scale.large)
        figures["repeat_is_equal"] = run.same(("exact", "first"), ("exact", "later"))


def approximate(run: Run, figures: Figures) -> None:
    """The released video decoder first, then the others with the same encoder and denoiser."""
    with run.engines.open(APPROXIMATE) as (engine, models):
        warm_and_check(run, engine, "approximate", figures)
        for name in ("first", "later"):
            run.request(engine, "approximate", figures, name, run.scale.large)
        figures["repeat_is_equal"] = run.same(("approximate", "first"), ("approximate", "later"))
        for decoder in run.engines.other_decoders:
            with run.engines.open_beside(APPROXIMATE, models, decoder) as beside:
                run.request(beside, "approximate", figures, f"{decoder} warm-up", run.scale.small)
                run.request(beside, "approximate", figures, decoder, run.scale.large)


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
    """The exact section's latents once more, through the other video decoders; nothing else is loaded."""
    for decoder in run.engines.other_decoders:
        with run.engines.open({**EXACT, "video_decoder": decoder}) as (engine, _):
            for name, source in (("warm-up", "small"), ("first", "first"), ("later", "later")):
                decode = partial(engine.decode, run.latents("exact", source))
                result, wall_s = run.timed(f"{decoder} {name}", decode)
                figures[f"{decoder} {name}"] = decode_figures(result, wall_s)
                run.save(f"{decoder} {name}", wall_s)


def swap(run: Run, figures: Figures) -> None:
    with run.engines.open(SWAPPED) as (engine, _):
        warm_and_check(run, engine, "swap", figures)
        run.request(engine, "swap", figures, "first", run.scale.large)
    for name in ("small", "first"):
        figures[f"{name}_is_exact"] = run.same(("swap", name), ("exact", name))


def warm_and_check(run: Run, engine: Engine, section: str, figures: Figures) -> None:
    """Three requests at the small size: equal latents from run to run, and under the profiler."""
    begun = perf_counter()
    engine.prepare()
    figures["opening_s"] = perf_counter() - begun
    for name in ("warm-up", "small"):
        run.request(engine, section, figures, name, run.scale.small)
    run.request(engine, section, figures, "profiled", run.scale.small, profiled=True)
    figures["small_repeat_is_equal"] = run.same((section, "warm-up"), (section, "small"))
    figures["profiled_is_equal"] = run.same((section, "small"), (section, "profiled"))


def random_conditioning(run: Run, width: int) -> Conditioning:
    embeds = torch.randn(run.scale.text_rows, width, generator=torch.Generator().manual_seed(2))
    tags = torch.ones(run.scale.text_rows, dtype=torch.int64)
    text = TextConditioning(embeds=embeds.to(run.scale.device, torch.bfloat16), tags=tags)
    return Conditioning(text=text, conditions=Conditions())


@frozen(kw_only=True)
class Section:
    """`expected_s` is what it takes on one H200: it is not started where the deadline leaves less."""

    measure: Callable[[Run, Figures], None]
    expected_s: float


SECTIONS: Mapping[str, Section] = {
    "exact": Section(measure=exact, expected_s=90),
    "approximate": Section(measure=approximate, expected_s=75),
    "peer": Section(measure=peer, expected_s=35),
    "decoders": Section(measure=decoders, expected_s=20),
    "swap": Section(measure=swap, expected_s=80),
}
