"""What the bench measures, in order of worth. A section fills the `figures` that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import torch
from attrs import frozen

from request_bench.engines import (
    ALL_SPARSE,
    APPROXIMATE,
    DECODERS,
    EXACT,
    FAST_SUMS,
    FUSED,
    FUSED_FP8,
    QUICK_ENCODER,
    SWAPPED,
)
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
    twice(run, "exact", {**EXACT, **FUSED}, figures)


def approximate(run: Run, figures: Figures) -> None:
    twice(run, "approximate", {**APPROXIMATE, **FUSED_FP8}, figures)


def default(run: Run, figures: Figures) -> None:
    """The exact section's denoising, with the released video decoder and the `file` sink."""
    once(run, "default", EXACT, figures)
    figures["large_is_exact"] = run.same(("default", "large"), ("exact", "large"))


def fast_sums(run: Run, figures: Figures) -> None:
    """The approximate section with partial sums in reduced precision."""
    once(run, "fast-sums", {**APPROXIMATE, **FUSED_FP8, **FAST_SUMS}, figures)


def all_sparse(run: Run, figures: Figures) -> None:
    """The fast-sums section without a dense block."""
    once(run, "all-sparse", {**APPROXIMATE, **FUSED_FP8, **FAST_SUMS, **ALL_SPARSE}, figures)


def quick_encoder(run: Run, figures: Figures) -> None:
    """The all-sparse section with x264's `veryfast`; its latents must be that section's."""
    options = {**APPROXIMATE, **FUSED_FP8, **FAST_SUMS, **ALL_SPARSE, **QUICK_ENCODER}
    once(run, "quick-encoder", options, figures)
    figures["large_is_all_sparse"] = run.same(("quick-encoder", "large"), ("all-sparse", "large"))


def peer(run: Run, figures: Figures) -> None:
    """Ours and diffusers' hold the same weights at once and take turns; two small steps warm both up."""
    facts, component = read_model_facts(run.engines.model_dir), run.engines.model_dir / "transformer"
    backends, conditioning = run.engines.container(EXACT).backends(), random_conditioning(run, facts.denoiser.text_dim)
    module = open_peer(run.engines.opener(component), facts.denoiser, run.scale.device)
    with backends.open_denoiser(component, facts.denoiser) as denoiser:
        for name, canvas, turns in (("small", run.scale.small, 2), ("large", run.scale.large, 1)):
            plan = plan_request(run.asked(canvas, steps=1), facts)
            ours: list[Step] = []
            theirs: list[Step] = []
            for _ in range(turns):
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
    """The exact section's latents once more, through every video decoder; nothing else is loaded."""
    for decoder, options in DECODERS.items():
        with run.engines.open({**EXACT, **options}) as engine:
            for name in ("warm-up", "large"):
                decode = partial(engine.decode, run.latents("exact", name))
                run_name = f"{decoder} {name}"
                result, wall_s = run.timed(run_name, decode, like=f"decode {name}")
                figures[run_name] = decode_figures(result, wall_s)
                run.save(run_name, wall_s)


def swap(run: Run, figures: Figures) -> None:
    once(run, "swap", SWAPPED, figures)
    for name in ("warm-up", "large"):
        figures[f"{name}_is_exact"] = run.same(("swap", name), ("exact", name))


def twice(run: Run, section: str, options: Mapping[str, Any], figures: Figures) -> None:
    """The large size twice, the first time with what meets it for the first time; last, what is for checks alone."""
    with opened(run, section, options, figures) as engine:
        run.request(engine, section, figures, "large", run.scale.large)
        run.request(engine, section, figures, "large again", run.scale.large)
        figures["repeat_is_equal"] = run.same((section, "large"), (section, "large again"))
        run.request(engine, section, figures, "profiled", run.scale.large, profiled=True)
        figures["profiled_is_equal"] = run.same((section, "large"), (section, "profiled"))


def once(run: Run, section: str, options: Mapping[str, Any], figures: Figures) -> None:
    """After a section that has met the large size in the same process."""
    with opened(run, section, options, figures) as engine:
        run.request(engine, section, figures, "large", run.scale.large)


@contextmanager
def opened(run: Run, section: str, options: Mapping[str, Any], figures: Figures) -> Iterator[Engine]:
    """Loaded, and warmed up with the small size."""
    with run.engines.open(options) as engine:
        begun = perf_counter()
        engine.prepare()
        figures["opening_s"] = perf_counter() - begun
        run.request(engine, section, figures, "warm-up", run.scale.small)
        yield engine


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
    "exact": Section(measure=exact, expected_s=55),
    "approximate": Section(measure=approximate, expected_s=40),
    "default": Section(measure=default, expected_s=45),
    "fast-sums": Section(measure=fast_sums, expected_s=27),
    "all-sparse": Section(measure=all_sparse, expected_s=25),
    "quick-encoder": Section(measure=quick_encoder, expected_s=25),
    "peer": Section(measure=peer, expected_s=20),
    "decoders": Section(measure=decoders, expected_s=15),
    "swap": Section(measure=swap, expected_s=70),
}
