"""Conditioning is reused by content, under one scope, within bounds, and never by accident."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from vflash.domain.model_facts import ModelFacts
from vflash.domain.plan import plan_request
from vflash.domain.request import VideoRequest
from vflash.stages.encode import Conditioning, Conditions
from vflash.stages.gather import Gathered, KeyframeInput, SoundInput
from vflash.stages.reuse import ConditioningReuseScope, ReuseCache, content_digest
from vflash_ports.text_encoder import TextConditioning


def conditioning(rows: int = 4) -> Conditioning:
    text = TextConditioning(embeds=torch.randn(rows, 8), tags=torch.ones(rows, dtype=torch.int64))
    return Conditioning(text=text, conditions=Conditions(video=(torch.randn(1, 2, 1, 2, 2),)))


class Encoder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Conditioning:
        self.calls += 1
        return conditioning()


def test_equal_content_under_one_scope_is_encoded_once() -> None:
    """The second request gets the very values of the first; the status says so."""
    cache, scope, encode = ReuseCache(), ConditioningReuseScope(), Encoder()
    first = cache.conditioning(scope, "a", encode)
    assert cache.status == "miss"
    second = cache.conditioning(scope, "a", encode)
    assert cache.status == "hit"
    assert encode.calls == 1
    assert torch.equal(first.text.embeds, second.text.embeds)


@pytest.mark.parametrize("between", ["another content", "another scope", "no scope", "a failure", "cleared", "idle"])
def test_what_clears_the_entry(between: str) -> None:
    """Afterwards the first content is encoded anew: there is never more than one entry."""
    now = [0.0]
    cache, scope, encode = ReuseCache(clock=lambda: now[0]), ConditioningReuseScope(), Encoder()
    cache.conditioning(scope, "a", encode)

    def fail() -> Conditioning:
        raise RuntimeError("encoder gone")

    if between == "another content":
        cache.conditioning(scope, "b", encode)
    elif between == "another scope":
        cache.conditioning(ConditioningReuseScope(), "a", encode)
    elif between == "no scope":
        cache.conditioning(None, "", encode)
        assert cache.status == "off"
    elif between == "a failure":
        with pytest.raises(RuntimeError):
            cache.conditioning(scope, "b", fail)
    elif between == "cleared":
        cache.clear()
    else:
        now[0] = 3601.0
    calls = encode.calls
    cache.conditioning(scope, "a", encode)
    assert cache.status == "miss"
    assert encode.calls == calls + 1


def test_use_keeps_an_entry_from_going_idle() -> None:
    """An hour without use, not an hour since it was made."""
    now = [0.0]
    cache, scope, encode = ReuseCache(clock=lambda: now[0]), ConditioningReuseScope(), Encoder()
    for moment in (0.0, 3000.0, 6000.0):
        now[0] = moment
        cache.conditioning(scope, "a", encode)
    assert encode.calls == 1


def test_what_is_too_large_is_used_but_not_kept() -> None:
    """128 MiB by default; text and condition latents count."""
    made = conditioning()
    size = made.text.embeds.nbytes + made.text.tags.nbytes + made.conditions.video[0].nbytes
    for limit, status in ((size, "hit"), (size - 1, "capacity-bypass")):
        cache, scope = ReuseCache(max_bytes=limit), ConditioningReuseScope()
        for _ in range(2):
            cache.conditioning(scope, "a", lambda: made)
        assert cache.status == status


def test_the_digest_is_of_everything_the_encoders_see(facts: ModelFacts) -> None:
    """Prompt, canvas, mode, each input's values, order and place; equal values at another address are equal."""

    def gathered(width: int = 64, **changes: object) -> Gathered:
        plan = plan_request(VideoRequest(prompt="x", width=width, height=64), facts)
        first = KeyframeInput(pixels=torch.arange(12, dtype=torch.uint8).view(2, 2, 3).clone(), last=False)
        return Gathered(plan=plan, inputs=(evolve(first, **changes), SoundInput(waveform=torch.zeros(2, 5))))

    base = content_digest("A fox.", gathered())
    assert content_digest("A fox.", gathered()) == base
    others = [
        content_digest("A fox!", gathered()),
        content_digest("A fox.", gathered(width=96)),
        content_digest("A fox.", gathered(last=True)),
        content_digest("A fox.", gathered(pixels=torch.zeros(2, 2, 3, dtype=torch.uint8))),
        content_digest("A fox.", gathered(pixels=torch.arange(12, dtype=torch.uint8).view(1, 4, 3))),
        content_digest("A fox.", evolve(gathered(), inputs=gathered().inputs[::-1])),
        content_digest("A fox.", evolve(gathered(), inputs=gathered().inputs[:1])),
    ]
    assert len({base, *others}) == 1 + len(others)
