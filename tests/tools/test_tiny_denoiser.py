"""The denoiser in training form is the released architecture, and learns what it is shown."""

from __future__ import annotations

import json
import time
from pathlib import Path

import attrs
import pytest
import torch

from tiny_h3.companion import FRESH_S, Companion
from tiny_h3.denoiser import Denoiser, Noised, batch_layout, hidden_matrices, new_parameters
from tiny_h3.guidance import Guidance
from tiny_h3.model import Model, open_model
from tiny_h3.muon import Optimiser, orthogonalise
from tiny_h3.sampler import Rows, needed_velocities, sample, step
from tiny_h3.sizes import TOY
from tiny_h3.stage import Budget, Progress, learning_rate, save_state
from tiny_h3.tasks import Example, draw_base, draw_noise, noised_at, shifted
from tiny_h3.text import open_presenter
from tiny_h3.text_encoder import TextEncoder
from tiny_h3.train_denoiser import flow_loss
from vflash.domain.model_facts import DenoiserFacts
from vflash.domain.packing import Condition, Keyframe, PictureBlock, pack
from vflash.model.positions import PackedIndex, Role, index_rows

CPU = torch.device("cpu")


def packed(conditions: list[Condition], tags: torch.Tensor, frames: int = 7, width: int = 6) -> PackedIndex:
    layout = pack(
        text_rows=len(tags),
        conditions=conditions,
        latent_frames=frames,
        latent_height=4,
        latent_width=width,
        audio_latents=4,
        patch=(1, 2, 2),
    )
    return index_rows(layout, tags)


@pytest.mark.parametrize(
    "conditions",
    [[], [Keyframe(last=False), Keyframe(last=True)], [PictureBlock(height=4, width=4)]],
    ids=["t2va", "fl2va", "ref2va"],
)
def test_velocities_equal_the_public_class(conditions: list[Condition]) -> None:
    """Each sample of a batch gets what diffusers' transformer gives it alone, within float32 rounding."""
    from diffusers import MiniMaxH3Transformer3DModel

    facts = DenoiserFacts(**TOY.transformer)
    index = packed(conditions, torch.tensor([1, 1, 0, 0, 1]))
    layout = batch_layout(index, facts, CPU, torch.float32)
    torch.manual_seed(0)
    public = MiniMaxH3Transformer3DModel(**TOY.transformer)
    with torch.no_grad():
        for parameter in public.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    condition = torch.randn(2, layout.condition_rows, 96) if conditions else None
    noised = Noised(
        text=torch.randn(2, 5, 24),
        condition=condition,
        audio=torch.randn(2, 8, 32),
        video=torch.randn(2, 42, 96),
        t_video=torch.tensor([0.0, 0.9995]),
        t_audio=torch.tensor([0.0, 0.6]),
    )
    with torch.no_grad():
        video, audio = Denoiser(facts, torch.float32, compiled=False).velocities(
            dict(public.named_parameters()), noised, layout
        )
        for sample_index in range(2):
            wanted = _public_velocities(public, index, noised, sample_index)
            assert torch.allclose(video[sample_index], wanted[0], atol=3e-5)
            assert torch.allclose(audio[sample_index], wanted[1], atol=3e-5)


def _public_velocities(
    public: torch.nn.Module, index: PackedIndex, noised: Noised, i: int
) -> tuple[torch.Tensor, torch.Tensor]:
    t_video, t_audio = float(noised.t_video[i]), float(noised.t_audio[i])
    times = torch.full((len(index.roles),), t_video)
    for rows in index.condition_video:
        times[rows] = max(t_video, 0.999)
    times[index.target_audio] = t_audio
    distinct, inverse = torch.unique(times, sorted=True, return_inverse=True)
    visual = torch.cat([torch.arange(s.start, s.stop) for s in (*index.condition_video, index.target_video)])
    video = noised.video[i] if noised.condition is None else torch.cat([noised.condition[i], noised.video[i]])
    output = public(
        hidden_states=video[None],
        audio_hidden_states=noised.audio[i][None],
        encoder_hidden_states=noised.text[i][None],
        timestep=distinct,
        timestep_indices=inverse,
        token_tags=torch.tensor([Role(int(role)).tag for role in index.roles]),
        position_ids=index.positions,
        video_indices=visual,
        audio_indices=torch.arange(index.target_audio.start, index.target_audio.stop),
        text_indices=torch.arange(index.text_rows),
    )
    generated = noised.video.shape[1]
    return output.sample[0, -generated:], output.audio_sample[0]


def test_training_and_sampling_agree_on_every_convention() -> None:
    """Four memorised clips: after a few hundred steps each caption samples its own clip, at 16 and at 4 evaluations."""
    torch.manual_seed(0)
    config = {**TOY.transformer, "hidden_size": 160, "num_attention_heads": 4, "num_layers": 1}
    facts = DenoiserFacts(**config)
    layout = batch_layout(packed([], torch.ones(3, dtype=torch.int64), frames=1, width=4), facts, CPU, torch.float32)
    encoder = TextEncoder(TOY.text, 64, image_pad=63)
    parameters = new_parameters(config, torch.Generator().manual_seed(0))
    model = Model(
        facts=facts,
        parameters=parameters,
        encoder=encoder,
        denoiser=Denoiser(facts, torch.float32, compiled=False),
    )
    which = torch.arange(16) % 4
    clips = {"video": torch.randn(4, 4, 96), "audio": torch.randn(4, 8, 32)}
    ids = torch.tensor([[10 + i, 5, 6] for i in range(4)])[which]
    example = Example(ids=ids, condition=None, layout=layout, **{k: v[which] for k, v in clips.items()})
    optimiser = Optimiser(model.everything(), hidden_matrices(parameters), matrix_rate=0.02, other_rate=3e-3)
    for number in range(260):
        loss, _ = flow_loss(model, example)
        loss.backward()
        optimiser.schedule(learning_rate(1.0, number / 260, number, warmup=20))
        optimiser.step()
    noise = draw_noise(example)
    for evaluations in (16, 4):
        rows = sample(model, example, noise, evaluations)
        for found, wanted in ((rows.video, clips["video"]), (rows.audio, clips["audio"])):
            distance = torch.cdist(found.flatten(1), wanted.flatten(1)) / wanted.flatten(1).norm(dim=1).mean()
            assert torch.equal(distance.argmin(1), which)
            assert distance.min(1).values.max() < 0.5


def test_a_step_with_the_needed_velocity_lands() -> None:
    """`needed_velocities` inverts `step`, whatever the interval."""
    torch.manual_seed(1)
    before, after = (Rows(audio=torch.randn(2, 8, 32), video=torch.randn(2, 4, 96)) for _ in range(2))
    now, following = torch.tensor(0.75), torch.tensor(0.5)
    landed = step(before, needed_velocities(before, after, now, following), now, following)
    assert torch.allclose(landed.video, after.video, atol=1e-4)
    assert torch.allclose(landed.audio, after.audio, atol=1e-4)


def test_noise_levels_follow_the_released_shifts() -> None:
    """Both modalities share a place on the grid; shift 12 keeps video noisier than shift 3 keeps sound."""
    base = draw_base(4096, CPU)
    assert bool(((base > 0) & (base <= 1)).all())
    assert (base == 1.0).float().mean() > 0.01
    assert torch.equal(shifted(torch.tensor([0.0, 1.0]), 12.0), torch.tensor([0.0, 1.0]))
    assert bool((shifted(base, 12.0) >= shifted(base, 3.0)).all())
    assert shifted(torch.tensor(0.5), 12.0).item() == pytest.approx(12 / 13)


def test_orthogonalised_updates_have_even_singular_values() -> None:
    """Newton-Schulz brings the singular values of wide and tall matrices near one and keeps their sign."""
    torch.manual_seed(2)
    for shape in ((3, 40, 16), (2, 16, 40)):
        matrices = torch.randn(shape)
        even = orthogonalise(matrices)
        values = torch.linalg.svdvals(even.float())
        assert values.min() > 0.3
        assert values.max() < 1.4
        assert (even * matrices).sum() > 0


def test_guidance_pushes_away_from_what_is_unsaid() -> None:
    """The target of text alone moves by (scale - 1) times what the caption changes; that of sound stays."""
    torch.manual_seed(2)
    facts = DenoiserFacts(**TOY.transformer)
    layout = batch_layout(packed([], torch.ones(3, dtype=torch.int64), frames=1, width=4), facts, CPU, torch.float32)
    parameters = new_parameters(TOY.transformer, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for value in parameters.values():
            value.add_(0.1 * torch.randn_like(value))
    model = Model(
        facts=facts,
        parameters=parameters,
        encoder=TextEncoder(TOY.text, 64, image_pad=63),
        denoiser=Denoiser(facts, torch.float32, compiled=False),
    )
    example = Example(
        ids=torch.tensor([[10, 5, 6], [7, 7, 7]]),
        condition=None,
        layout=layout,
        video=torch.randn(2, 4, 96),
        audio=torch.randn(2, 8, 32),
    )
    noised = noised_at(example, draw_noise(example), torch.tensor([0.9, 0.4]), model.encoder)
    guidance = Guidance(teacher=model, silent=7, scale=3.0)
    push = guidance.push(example, noised)
    assert torch.equal(push[1], torch.zeros_like(push[1])), "a caption of silent tokens is what is unsaid"
    said = model.denoiser.velocities(parameters, noised, layout)[0]
    unsaid_text = model.encoder(torch.full_like(example.ids, 7))
    unsaid = model.denoiser.velocities(parameters, attrs.evolve(noised, text=unsaid_text), layout)[0]
    assert torch.allclose(push, 2.0 * (said - unsaid), atol=1e-6)
    assert torch.equal(guidance.push(example, noised, said=said), push), "a known velocity is not computed again"
    assert push[0].abs().max() > 1e-4
    losses = []
    for given in (None, guidance):
        torch.manual_seed(4)
        losses.append(flow_loss(model, example, given)[1])
    assert losses[0][1] != losses[1][1]
    assert losses[0][2] == losses[1][2], "sound is not guided"


def test_two_trainings_draw_together(tmp_path: Path) -> None:
    """A follower first takes the leader's values; then each goes half-way to the other; it ends when that does."""
    first, second = [torch.zeros(3), torch.zeros(2, 2)], [torch.ones(3), torch.full((2, 2), 5.0)]
    leader = Companion(folder=tmp_path, parameters=first, leads=True)
    follower = Companion(folder=tmp_path, parameters=second, leads=False)
    paces = [Progress(budget=Budget(steps=10)), Progress(budget=Budget())]
    leader.exchange(paces[0])
    follower.wait_for_leader()
    follower.exchange(paces[1])
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    second[0].fill_(4.0)
    paces[0].step = 5
    follower.exchange(paces[1])
    assert torch.equal(second[0], torch.full((3,), 2.0))
    leader.exchange(paces[0])
    assert torch.equal(first[0], torch.full((3,), 1.0))
    follower.exchange(paces[1])
    assert (paces[1].share, paces[1].done) == (0.5, False)
    leader.leave()
    follower.exchange(paces[1])
    assert paces[1].done


def test_a_follower_whose_leader_has_stopped_ends(tmp_path: Path) -> None:
    """Also one that never took the leader's values: the news was fresh when it had waited, and old a moment later."""
    parameters, pace = [torch.ones(3)], Progress(budget=Budget())
    Companion(folder=tmp_path, parameters=[torch.zeros(3)], leads=True).exchange(Progress(budget=Budget(steps=10)))
    follower = Companion(folder=tmp_path, parameters=parameters, leads=False)
    follower.wait_for_leader()
    old = {"share": 0.1, "at": time.time() - FRESH_S - 1.0}
    (tmp_path / "averaging-leader.json").write_text(json.dumps(old))
    follower.exchange(pace)
    assert pace.done
    assert torch.equal(parameters[0], torch.ones(3))


def test_a_state_of_other_dimensions_is_refused(tmp_path: Path) -> None:
    """By the file's name and a tensor's, also where torch would stretch one row over many."""
    presenter = open_presenter(tmp_path)
    model, _ = open_model(TOY, presenter, None, CPU, compiled=False)
    for name, other in (("cut", lambda value: value[:1]), ("gone", lambda _: None)):
        tensors = {key: value.detach() for key, value in model.everything().items()}
        changed = other(tensors.pop("proj_out.weight"))
        state = tmp_path / f"{name}.safetensors"
        save_state(state, tensors | ({} if changed is None else {"proj_out.weight": changed}), {}, torch.float32)
        with pytest.raises(ValueError, match=rf"{name}\.safetensors.*proj_out\.weight"):
            open_model(TOY, presenter, state, CPU, compiled=False)
