"""Sample the prompt set in batches, decode, and let the judge see and hear it, without a file in between."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import Executor

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray

from tiny_h3.codecs import Codecs
from tiny_h3.guidance import Guidance
from tiny_h3.model import Model
from tiny_h3.prompts import HELD_OUT_SEED, Prompt, pictures, prompt_set
from tiny_h3.sampler import Rows, sample
from tiny_h3.sizes import LATENT_CHANNELS, PATCH
from tiny_h3.tasks import LATENT_FRAMES, Laying, Noise, Task
from tiny_h3.text import Presenter
from tiny_h3.world import AUDIO_LATENTS, FPS, SAMPLE_RATE_HZ, render_audio, render_video
from vflash.model.patching import unpatchify
from vflash_adapters.judge.description import Description
from vflash_adapters.judge.reading import PlayedClip
from vflash_adapters.judge.verdict import Verdict, judge, measure

DELIVERED = 120
_LARGEST_BATCH = 8


@frozen(kw_only=True, eq=False)
class Scores:
    """Right answers and questions, by attribute."""

    right: Counter[str] = field(factory=Counter)
    asked: Counter[str] = field(factory=Counter)

    def add(self, verdict: Verdict) -> None:
        for attribute in verdict.attributes:
            self.asked[attribute.name] += 1
            self.right[attribute.name] += attribute.right

    def shares(self) -> dict[str, float]:
        total = sum(self.right.values()) / max(1, sum(self.asked.values()))
        return {"all": total, **{name: self.right[name] / asked for name, asked in sorted(self.asked.items())}}


@frozen(kw_only=True, eq=False)
class Sampled:
    """One prompt's clip as it would be delivered, before any encoding."""

    prompt: Prompt
    clip: PlayedClip


@torch.no_grad()
def evaluate(
    model: Model,
    codecs: Codecs,
    presenter: Presenter,
    task: Task,
    *,
    evaluations: int,
    canvas: tuple[int, int] = (96, 128),
    count: int = 64,
    parameters: Mapping[str, torch.Tensor] | None = None,
    guidance: Guidance | None = None,
    seed: int = HELD_OUT_SEED,
    workers: Executor | None = None,
) -> tuple[Scores, list[Sampled]]:
    """Scores over the fixed prompts, or over those of another `seed`, and the clips themselves. `canvas` is (height,
    width); `parameters` stand in for the model's; `guidance` is for text alone; `workers` judge beside each other."""
    device = next(iter(model.parameters.values())).device
    laying = Laying(presenter, model.facts, device, model.denoiser.dtype)
    made: list[Sampled] = []
    for group in _by_length(prompt_set(task, count, seed=seed), presenter):
        rows = _sample_group(model, codecs, laying, group, canvas, evaluations, parameters, guidance)
        made += _decode(codecs, rows, [prompt for prompt, _ in group], canvas)
    scores = Scores()
    spread = map if workers is None else workers.map
    for verdict in spread(judged, [question(item, canvas) for item in made]):
        scores.add(verdict)
    return scores, made


def reconstruct(codecs: Codecs, count: int, canvas: tuple[int, int]) -> Scores:
    """The judge on clips that only went through both VAEs and back: what the denoiser cannot beat."""
    scores = Scores()
    device = codecs.video.mean.device
    for prompt in prompt_set(Task.T2VA, count):
        scene = prompt.scene.to(device)
        with torch.no_grad():
            rows = Rows(
                video=codecs.video.rows(render_video(scene, *canvas)),
                audio=codecs.audio.rows(render_audio(scene, aspect=canvas)),
            )
            (item,) = _decode(codecs, rows, [prompt], canvas)
        scores.add(judge(measure(item.clip), prompt.expected))
    return scores


def _by_length(prompts: list[Prompt], presenter: Presenter) -> list[list[tuple[Prompt, list[int]]]]:
    ids = presenter.prompts([prompt.caption for prompt in prompts])
    groups: dict[int, list[tuple[Prompt, list[int]]]] = defaultdict(list)
    for prompt, tokens in zip(prompts, ids, strict=True):
        groups[len(tokens)].append((prompt, tokens))
    return [rows[i : i + _LARGEST_BATCH] for rows in groups.values() for i in range(0, len(rows), _LARGEST_BATCH)]


def _sample_group(
    model: Model,
    codecs: Codecs,
    laying: Laying,
    group: list[tuple[Prompt, list[int]]],
    canvas: tuple[int, int],
    evaluations: int,
    parameters: Mapping[str, torch.Tensor] | None,
    guidance: Guidance | None,
) -> Rows:
    device, count = laying.device, len(group)
    given: dict[str, list[torch.Tensor]] = defaultdict(list)
    for prompt, _ in group:
        for name, picture in pictures(prompt, *canvas).items():
            pixels = torch.from_numpy(picture).to(device).permute(2, 0, 1)[None, :, None].float() / 255.0
            given[name].append(codecs.video.rows(pixels))
    video_rows = LATENT_FRAMES * (canvas[0] // 32) * (canvas[1] // 32)
    empty = {
        "video": torch.zeros(count, video_rows, LATENT_CHANNELS * 4, device=device),
        "audio": torch.zeros(count, 2 * AUDIO_LATENTS, codecs.audio.scale.mean.numel(), device=device),
    }
    prompts = torch.tensor([tokens for _, tokens in group])
    conditions = {name: torch.cat(parts) for name, parts in given.items()}
    example = laying.assemble(
        group[0][0].task, canvas, prompts, pictures=conditions, video=empty["video"], audio=empty["audio"]
    )
    noise = _own_noise(empty, [prompt.number for prompt, _ in group])
    return sample(model, example, noise, evaluations, parameters, guidance)


def _own_noise(empty: Mapping[str, torch.Tensor], numbers: list[int]) -> Noise:
    """Each prompt's noise depends on its number alone, so configurations differ in nothing else."""
    drawn: dict[str, list[torch.Tensor]] = defaultdict(list)
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        for name in ("video", "audio"):
            drawn[name].append(torch.randn(empty[name].shape[1:], generator=generator))
    return Noise(**{name: torch.stack(parts).to(empty[name].device) for name, parts in drawn.items()})


def _decode(codecs: Codecs, rows: Rows, prompts: list[Prompt], canvas: tuple[int, int]) -> list[Sampled]:
    made = []
    for index, prompt in enumerate(prompts):
        latents = unpatchify(
            rows.video[index],
            PATCH,
            channels=LATENT_CHANNELS,
            frames=LATENT_FRAMES,
            height=canvas[0] // 16,
            width=canvas[1] // 16,
        )
        frames = codecs.video.decode(latents)[0, :, :DELIVERED]
        wave = codecs.audio.decode(rows.audio[index])[:, : DELIVERED * SAMPLE_RATE_HZ // FPS]
        pixels: NDArray[np.uint8] = (frames * 255).round().to(torch.uint8).permute(1, 2, 3, 0).cpu().numpy()
        clip = PlayedClip(frames=pixels, fps=FPS, waveform=wave.cpu().numpy(), sample_rate_hz=SAMPLE_RATE_HZ)
        made.append(Sampled(prompt=prompt, clip=clip))
    return made


Question = tuple[PlayedClip, Description, "NDArray[np.uint8] | None", "NDArray[np.uint8] | None"]


def question(item: Sampled, canvas: tuple[int, int]) -> Question:
    """What a judging process needs: arrays and words, no tensors."""
    given = pictures(item.prompt, *canvas)
    return item.clip, item.prompt.expected, given.get("first"), given.get("last")


def judged(question: Question) -> Verdict:
    clip, expected, first, last = question
    return judge(measure(clip), expected, first_frame=first, last_frame=last)
