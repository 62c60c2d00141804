"""The memory plan's arithmetic: sizes of the released model, what each choice moves, and the advice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash.domain.choices import Linear, ModelPlacement, VideoDecoderChoice, WeightResidency
from vflash.domain.footprint import Pixels, Rows, block_bytes, denoise_bytes, table_bytes
from vflash.domain.memory import (
    DEVICE_MARGIN,
    GIB,
    Half,
    MemoryOptions,
    ModelBytes,
    Need,
    PartBytes,
    Workload,
    gib,
    judge,
    need,
)
from vflash.domain.memory_plan import every_choice, first_change, first_decoding_change
from vflash.domain.model_facts import DenoiserFacts, ModelFacts
from vflash.model.load import packed_specs
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.linear.fp8 import Fp8WeightOnlyLinear, W8A8Linear
from vflash_ports.machine import MachineLimits

RELEASED = ModelBytes(
    encoder=PartBytes(loaded=49 * GIB, largest=3 * GIB // 2, read=49 * GIB),
    codec=PartBytes(loaded=6 * GIB, largest=6 * GIB, read=10 * GIB),
    auxiliary=PartBytes(loaded=8 * GIB // 5, largest=0, read=8 * GIB // 5),
    projections=PartBytes(loaded=0, largest=GIB // 2, read=24 * GIB),
    stack_read=36 * GIB,
    encoder_hidden=5120,
    encoder_ffn=25600,
)
CHOSEN = MemoryOptions(
    weight_residency=WeightResidency.RESIDENT,
    linear=Linear.BF16,
    placement=ModelPlacement.TOGETHER,
    keep=True,
    tiles_at_once=28,
)


def workload(facts: ModelFacts, **changes: object) -> Workload:
    """1344x768, 5 s, four evaluations."""
    work = Workload(
        facts=facts,
        model=RELEASED,
        rows=Rows(text=60, condition=0, target_audio=414, target_video=37 * 24 * 42),
        pixels=Pixels(width=1344, height=768),
        evaluations=4,
        dtype_bytes=2,
        chunk_rows=16_384,
        on_cpu=False,
    )
    return evolve(work, **changes)


def card(device_gib: float, host_gib: float = 128) -> MachineLimits:
    return MachineLimits(device="cuda:0", device_bytes=int(device_gib * GIB), host_bytes=int(host_gib * GIB))


@pytest.mark.parametrize(
    ("storage", "execution", "dtype"),
    [
        (Linear.BF16, Bf16Linear(), torch.bfloat16),
        (Linear.BF16, Bf16Linear(), torch.float32),
        (Linear.FP8_WEIGHT_ONLY, Fp8WeightOnlyLinear(row_kernels="torch"), torch.bfloat16),
        (Linear.W8A8, W8A8Linear(row_kernels="torch"), torch.bfloat16),
    ],
)
def test_a_block_weighs_what_it_is_packed_to(storage, execution, dtype) -> None:
    """The plan's bytes are those of the packed tensors, for every linear execution."""
    specs = packed_specs(DenoiserFacts(), execution, dtype)
    assert block_bytes(DenoiserFacts(), storage, dtype.itemsize) == sum(spec.byte_count for spec in specs.values())


def test_the_released_stack_in_the_usual_numbers() -> None:
    """A BF16 block without AdaLN is 735 MiB, fifty of them 35.9 GiB; the tables of four evaluations are 62 MiB."""
    block = block_bytes(DenoiserFacts(), Linear.BF16, 2)
    assert round(block / 2**20) == 735
    assert round(50 * block / GIB, 1) == 35.9
    assert round(table_bytes(DenoiserFacts(), 4, 2) / 2**20) == 62


def test_choices_move_bytes_where_they_say(facts: ModelFacts) -> None:
    """A ring holds two blocks; swapping and releasing free the encoder's device memory; FP8 halves a block."""
    work = workload(facts)
    resident = need(work, CHOSEN)
    ring = need(work, evolve(CHOSEN, weight_residency=WeightResidency.BLOCK_RING))
    block = block_bytes(facts.denoiser, Linear.BF16, 2)
    assert resident.weights_on_device - ring.weights_on_device == 48 * block
    assert resident.device - ring.device == 48 * block
    assert resident.pinned == 0
    assert 50 * block <= ring.pinned <= 1.05 * 50 * block
    swapped = need(work, evolve(CHOSEN, placement=ModelPlacement.SWAP))
    assert swapped.device < resident.device - 45 * GIB
    assert swapped.host > resident.host
    released = need(work, evolve(CHOSEN, keep=False))
    assert released.stages["denoise"] == swapped.stages["denoise"]
    halved = need(work, evolve(CHOSEN, linear=Linear.W8A8))
    assert 0.5 <= halved.weights_on_device / resident.weights_on_device < 0.502
    assert {found.read for found in (resident, ring, swapped)} == {(36 + 49 + 10 + 24) * GIB + 8 * GIB // 5}


def test_a_video_decoder_s_copies_are_counted_while_it_decodes(facts: ModelFacts) -> None:
    """Released sizes: the fused one holds 0.84 GiB, FP8 2.25 GiB of codes and scales and half the SwiGLU's output."""
    plain, fused, fp8 = (need(workload(facts, video_decoder=decoder), CHOSEN).stages for decoder in VideoDecoderChoice)
    product = 28 * 7 * 16 * 16 * 8192
    scales = 36 * 4 * (3 * 2048 + 2048 + 2 * 8192 + 2048)
    assert fused["decode"] - plain["decode"] == 36 * 3 * 2048**2 * 2
    assert fp8["decode"] - plain["decode"] == 36 * (4 * 2048**2 + 3 * 2048 * 8192) + scales - product
    assert {name: plain[name] for name in ("encode", "denoise")} == {name: fp8[name] for name in ("encode", "denoise")}


def test_what_the_attention_holds_is_there_in_every_stage(facts: ModelFacts) -> None:
    """Read before the first stage and kept to the last, whatever the choice; it moves nothing else."""
    held = 484_442_112
    for choice in (CHOSEN, evolve(CHOSEN, placement=ModelPlacement.SWAP), evolve(CHOSEN, keep=False)):
        without, found = (need(workload(facts, attention_bytes=size), choice) for size in (0, held))
        assert found.stages == {name: size + held for name, size in without.stages.items()}
        assert (found.pinned, found.host, found.read) == (without.pinned, without.host, without.read)
    on_cpu = [need(workload(facts, on_cpu=True, attention_bytes=size), CHOSEN).host for size in (0, held)]
    assert on_cpu[1] - on_cpu[0] == held


@given(
    text=st.integers(1, 5000),
    condition=st.integers(0, 50_000),
    audio=st.integers(2, 1300),
    video=st.integers(1, 80_000),
)
@settings(deadline=None, max_examples=50)
def test_more_rows_never_need_less(text: int, condition: int, audio: int, video: int) -> None:
    """Activation bytes grow with every kind of row, and chunking bounds the FFN's share alone."""
    model = DenoiserFacts()

    def needed(rows: Rows, chunk: int = 16_384) -> int:
        return denoise_bytes(model, rows, Linear.BF16, dtype_bytes=2, chunk_rows=chunk)

    rows = Rows(text=text, condition=condition, target_audio=audio, target_video=video)
    for name in ("text", "condition", "target_audio", "target_video"):
        assert needed(evolve(rows, **{name: getattr(rows, name) + 100})) > needed(rows)
    assert needed(rows, chunk=1 << 30) >= needed(rows, chunk=1024)


@pytest.mark.parametrize(
    ("device_gib", "host_gib", "expected"),
    [
        (139, 128, ""),
        (79, 128, "weight_residency block-ring"),
        (52, 256, "model_placement swap"),
        (23, 128, "weight_residency block-ring and model_placement swap"),
        (23, 64, "weight_residency block-ring and model_placement swap and model_lifetime per-request"),
        (
            23,
            32,
            "model_placement swap and model_lifetime per-request and linear fp8-weight-only (approximate)",
        ),
        (139, 48, ""),
        (8, 8, "nothing"),
    ],
)
def test_the_advice_is_the_smallest_change_that_fits(facts, device_gib: float, host_gib: float, expected: str) -> None:
    """Settings that keep precision come first, one at a time; what fits needs no advice."""
    limits = card(device_gib, host_gib)

    def judged(work: Workload, options: MemoryOptions) -> Need:
        return judge(need(work, options), limits)

    work = workload(facts)
    if not expected:
        assert judged(work, CHOSEN).fits
        return
    assert not judged(work, CHOSEN).fits
    advice = first_change(work, CHOSEN, judged, iter(()))
    assert advice.startswith("Nothing" if expected == "nothing" else f"What makes it fit: {expected}")


def test_a_smaller_request_is_named_but_never_taken(facts: ModelFacts) -> None:
    """Where no setting helps, the first smaller request that fits is named in words."""
    large = workload(facts, rows=Rows(text=60, condition=400_000, target_audio=414, target_video=37 * 24 * 42))
    limits = card(12, 128)

    def smaller() -> Iterator[tuple[str, Workload]]:
        yield "a duration of 14 s", large
        yield "a duration of 5 s", workload(facts)

    ring = evolve(CHOSEN, weight_residency=WeightResidency.BLOCK_RING, placement=ModelPlacement.SWAP, keep=False)
    advice = first_change(large, ring, lambda work, options: judge(need(work, options), limits), smaller())
    assert advice == "No change of settings makes it fit; a duration of 5 s would."


def test_obstacles_name_the_place_and_both_numbers(facts: ModelFacts) -> None:
    """What stands in the way is said with what there is and what is needed; a backend's own refusal comes first."""
    found = judge(need(workload(facts), CHOSEN), card(24, 3), ("linear 'w8a8' needs a Hopper card",))
    assert found.obstacles[0] == "linear 'w8a8' needs a Hopper card"
    assert "cuda:0 has 24.0 GiB" in found.obstacles[1]
    assert "the host has 3.0 GiB" in found.obstacles[2]


def test_on_a_cpu_everything_is_host_memory(facts: ModelFacts) -> None:
    """No pinned bytes and no device limit: weights and activations count against the host."""
    found = need(workload(facts, on_cpu=True), evolve(CHOSEN, weight_residency=WeightResidency.BLOCK_RING))
    assert found.pinned == 0
    assert found.host > found.device + 35 * GIB
    assert judge(found, MachineLimits(device="cpu", device_bytes=None, host_bytes=1 << 50)).fits


def test_every_choice_is_every_residency_with_every_linear() -> None:
    """Six choices, each once, all else as chosen."""
    choices = every_choice(CHOSEN)
    assert len(set(choices)) == len(choices) == len(WeightResidency) * len(Linear)
    assert all(choice.placement is CHOSEN.placement and choice.keep for choice in choices)


def test_a_smaller_request_may_need_other_settings_too(facts: ModelFacts) -> None:
    """Where neither settings nor a shorter clip fit alone, the two together are named; nothing is called impossible
    that is not."""
    large = workload(facts, rows=Rows(text=60, condition=400_000, target_audio=414, target_video=37 * 24 * 42))
    limits = card(23, 128)
    advice = first_change(
        large,
        CHOSEN,
        lambda work, options: judge(need(work, options), limits),
        [("a duration of 5 s", workload(facts))],
    )
    both = "weight_residency block-ring and model_placement swap"
    assert advice == f"No change of settings alone makes it fit; a duration of 5 s with {both} would."


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"weight_residency": WeightResidency.BLOCK_RING}, "weight_residency resident"),
        ({"placement": ModelPlacement.SWAP}, "model_placement together"),
        (
            {"placement": ModelPlacement.SWAP, "weight_residency": WeightResidency.BLOCK_RING},
            "weight_residency resident and model_placement together",
        ),
    ],
)
def test_a_small_host_beside_a_large_card(facts: ModelFacts, changes: dict[str, object], expected: str) -> None:
    """What waits in host memory by choice has a place on the card; that is said, not that nothing helps."""
    limits = card(139, 16)
    advice = first_change(
        workload(facts), evolve(CHOSEN, **changes), lambda work, options: judge(need(work, options), limits), ()
    )
    assert advice == f"What makes it fit: {expected}."


def all_options() -> list[MemoryOptions]:
    every = product(WeightResidency, Linear, ModelPlacement, (True, False), (4, 28))
    return [
        MemoryOptions(weight_residency=residency, linear=linear, placement=placement, keep=keep, tiles_at_once=tiles)
        for residency, linear, placement, keep, tiles in every
    ]


def taken(options: MemoryOptions, words: list[str]) -> MemoryOptions:
    """As a user takes the advice: a setting's name and its value."""
    for word in words:
        name, value = word.removesuffix(" (approximate)").split(" ")
        if name == "model_lifetime":
            options = evolve(options, keep=value == "keep")
        elif name == "vae_tiles_at_once":
            options = evolve(options, tiles_at_once=int(value))
        elif name == "model_placement":
            options = evolve(options, placement=ModelPlacement(value))
        elif name == "linear":
            options = evolve(options, linear=Linear(value))
        else:
            options = evolve(options, weight_residency=WeightResidency(value))
    return options


@settings(max_examples=60, deadline=None)
@given(
    device_gib=st.integers(4, 150),
    host_gib=st.integers(4, 300),
    rows=st.integers(1_000, 200_000),
    residency=st.sampled_from(WeightResidency),
    placement=st.sampled_from(ModelPlacement),
    keep=st.booleans(),
)
def test_what_is_advised_fits_and_less_does_not(facts, device_gib, host_gib, rows, residency, placement, keep) -> None:
    """Taking the advice makes the plan fit, leaving out any one of its changes does not; "nothing" means nothing, and
    its figures are bounds that no choice undercuts."""
    work = workload(facts, rows=Rows(text=60, condition=0, target_audio=414, target_video=rows))
    limits = card(device_gib, host_gib)
    chosen = evolve(CHOSEN, weight_residency=residency, placement=placement, keep=keep)
    if judge(need(work, chosen), limits).fits:
        return
    advice = first_change(work, chosen, lambda work, options: judge(need(work, options), limits), ())
    if advice.startswith("Nothing"):
        every = [need(work, options) for options in all_options()]
        assert not any(judge(found, limits).fits for found in every)
        device, host = (min(getattr(found, place) for found in every) for place in ("device", "host"))
        assert advice.endswith(f"at least {gib(device)} on the device, {gib(host)} of host.")
        return
    words = advice.removeprefix("What makes it fit: ").removesuffix(".").split(" and ")
    assert judge(need(work, taken(chosen, words)), limits).fits
    for number in range(len(words)):
        fewer = words[:number] + words[number + 1 :]
        assert not judge(need(work, taken(chosen, fewer)), limits).fits


def test_encoding_alone_needs_no_denoiser_and_no_frames(facts: ModelFacts) -> None:
    """A machine too small to denoise or decode can still encode: only the encoders count, whatever the residency."""
    work = workload(facts, pixels=Pixels(width=1344, height=768, reference_frames=1))
    alone = evolve(work, half=Half.ENCODE)
    for options in all_options():
        whole, encoding = need(work, options), need(alone, options)
        assert set(encoding.stages) == {"encode"}
        assert (encoding.weights_on_device, encoding.pinned) == (0, 0)
        assert encoding.device <= whole.stages["encode"]
        assert encoding.host <= whole.host
    swapped = evolve(CHOSEN, placement=ModelPlacement.SWAP, keep=False)
    assert judge(need(alone, swapped), card(16, 16)).fits
    assert not judge(need(work, swapped), card(16, 16)).fits


def test_decoding_alone_needs_the_vaes_and_the_frames(facts: ModelFacts) -> None:
    """What decodes a whole request decodes its latents, and a machine too small to denoise can."""
    work = workload(facts)
    alone = evolve(work, half=Half.DECODE)
    for options in all_options():
        whole, decoding = need(work, options), need(alone, options)
        assert set(decoding.stages) == {"decode"}
        assert (decoding.weights_on_device, decoding.pinned) == (0, 0)
        assert decoding.device <= whole.stages["decode"]
        assert decoding.host <= whole.host
    fewer = need(alone, evolve(CHOSEN, tiles_at_once=1)).device
    assert fewer < need(alone, evolve(CHOSEN, tiles_at_once=28)).device
    assert judge(need(alone, CHOSEN), card(12, 16)).fits
    assert not judge(need(work, CHOSEN), card(12, 16)).fits


EIGHT_TILES = evolve(CHOSEN, tiles_at_once=8)


def decoding(facts: ModelFacts, decoder: VideoDecoderChoice) -> Workload:
    return workload(facts, half=Half.DECODE, video_decoder=decoder)


def room(facts: ModelFacts, decoder: VideoDecoderChoice, tiles: int) -> int:
    """Device bytes that just suffice."""
    return need(decoding(facts, decoder), evolve(EIGHT_TILES, tiles_at_once=tiles)).device + DEVICE_MARGIN


def advised(facts: ModelFacts, device_bytes: int) -> str:
    """For eight tiles with `fused-fp8` on such a card."""
    limits = evolve(card(1), device_bytes=device_bytes)
    work = decoding(facts, VideoDecoderChoice.FUSED_FP8)
    return first_decoding_change(work, EIGHT_TILES, lambda work, options: judge(need(work, options), limits))


@pytest.mark.parametrize("tiles", [4, 2, 1])
def test_fewer_tiles_are_the_first_cure_of_a_decode(facts: ModelFacts, tiles: int) -> None:
    """They change no pixel."""
    assert advised(facts, room(facts, VideoDecoderChoice.FUSED_FP8, tiles)) == (
        f"What makes it fit: vae_tiles_at_once {tiles}."
    )


@pytest.mark.parametrize(
    ("tiles", "words"), [(8, ""), (4, "vae_tiles_at_once 4 and "), (1, "vae_tiles_at_once 1 and ")]
)
def test_the_vae_s_own_decoder_is_the_second_cure(facts: ModelFacts, tiles: int, words: str) -> None:
    """It copies no weights, so that it fits where one fused tile does not."""
    least = room(facts, VideoDecoderChoice.DIFFUSERS, tiles)
    assert least < room(facts, VideoDecoderChoice.FUSED_FP8, 1)
    assert advised(facts, least) == f"What makes it fit: {words}video_decoder diffusers (other pixels)."


def test_where_no_decode_fits_the_least_is_told(facts: ModelFacts) -> None:
    least = room(facts, VideoDecoderChoice.DIFFUSERS, 1)
    told = advised(facts, least - 1)
    assert told.startswith(f"Nothing makes it fit here: it needs at least {gib(least - DEVICE_MARGIN)} on the device, ")
