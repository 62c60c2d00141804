"""The exported checkpoint: the product runs it as it was trained, and so does the public text encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tiny_h3.audio_vae import AudioVaeJob, train_audio_vae
from tiny_h3.export import export_checkpoint, size_of
from tiny_h3.model import Model, open_model
from tiny_h3.sampler import sample
from tiny_h3.sizes import PATCH, TOY
from tiny_h3.stage import Budget, save_state
from tiny_h3.tasks import AUDIO_LATENTS, LATENT_FRAMES, Example, Laying, Noise, Task
from tiny_h3.text import Presenter, open_presenter
from tiny_h3.video_vae import VideoVaeJob, train_video_vae
from vflash.model.patching import patchify, sound_latents, unpatchify
from vflash.model.sigmas import noise_condition
from vflash.pipeline import H3Pipeline, VideoRequest
from vflash_adapters.latent_codec.diffusers_vaes import DiffusersVaes
from vflash_adapters.weights.mmap_source import MmapWeights

CPU = torch.device("cpu")
HEIGHT, WIDTH = 32, 64
PROMPTS = {
    Task.T2VA: "a red ball bounces on blue",
    Task.FL2VA: "一个绿色方块在黑色背景上向左移动",
    Task.REF2VA: "<Picture 1> grows on white",
}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """States with weights large enough that every tensor matters; training would need longer to get there."""
    folder = tmp_path_factory.mktemp("run")
    one = Budget(steps=1)
    train_video_vae(VideoVaeJob(sizes=TOY, folder=folder, budget=one, batch=1, canvases=((32, 32),)))
    train_audio_vae(AudioVaeJob(sizes=TOY, folder=folder, budget=one, batch=1, latents=8))
    text: dict[str, torch.Tensor] = {}
    for seed, name in enumerate(("transformer", "transformer_ref")):
        values = _restless(folder, seed)
        text = text or {key: value for key, value in values.items() if key.startswith("text_encoder.")}
        save_state(folder / f"{name}.safetensors", {**values, **text}, {"steps": 1}, torch.float32)
    return folder


def _restless(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    model, _ = open_model(TOY, open_presenter(folder), None, CPU, seed=seed, compiled=False)
    torch.manual_seed(seed)
    return {
        name: value.detach() + torch.randn_like(value) * (0.3 if value.ndim == 1 else 0.3 * value.shape[-1] ** -0.5)
        for name, value in model.everything().items()
    }


@pytest.fixture(scope="module")
def checkpoint(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("export") / "tiny-h3"
    export_checkpoint(run_folder, output, TOY, float32=True)
    return output


def opened(run_folder: Path, task: Task) -> tuple[Model, Presenter]:
    presenter = open_presenter(run_folder)
    name = "transformer_ref" if task is Task.REF2VA else "transformer"
    return open_model(TOY, presenter, run_folder / f"{name}.safetensors", CPU, compiled=False)[0], presenter


def drawn_pictures(task: Task, folder: Path) -> list[Path]:
    """Random pictures of the size they will have, so that nothing is resized."""
    count = {Task.T2VA: 0, Task.FL2VA: 2, Task.REF2VA: 1}[task]
    size = (64, 64) if task is Task.REF2VA else (HEIGHT, WIDTH)
    paths = []
    for number in range(count):
        noise = np.random.default_rng(number).integers(0, 255, (*size, 3), dtype=np.uint8)
        paths.append(folder / f"{number}.png")
        Image.fromarray(noise).save(paths[-1])
    return paths


@pytest.mark.parametrize("task", list(PROMPTS))
def test_the_product_samples_what_was_trained(task: Task, run_folder: Path, checkpoint: Path, tmp_path: Path) -> None:
    """Text, layout, conditions, schedules and weights: the product's latents are the training sampler's."""
    pictures = drawn_pictures(task, tmp_path)
    given: dict[str, object] = {}
    if task is Task.FL2VA:
        given = {"first_frame": pictures[0], "last_frame": pictures[1]}
    elif task is Task.REF2VA:
        given = {"references": pictures}
    kept = tmp_path / "latents.safetensors"
    request = VideoRequest(
        prompt=PROMPTS[task], width=WIDTH, height=HEIGHT, steps=2, seed=5, save_latents=kept, **given
    )
    with H3Pipeline(checkpoint, device="cpu", dtype="float32") as pipeline:
        pipeline.generate(request, tmp_path / "clip.mp4")
    found = load_file(kept)

    model, presenter = opened(run_folder, task)
    example, noise = same_inputs(task, presenter, model, pictures, checkpoint)
    rows = sample(model, example, noise, 2)
    video = unpatchify(rows.video[0], PATCH, channels=24, frames=LATENT_FRAMES, height=HEIGHT // 16, width=WIDTH // 16)
    audio = sound_latents(rows.audio[0], 2)
    for name, wanted in (("video_latents", video), ("audio_latents", audio)):
        difference = (found[name] - wanted).norm() / wanted.norm()
        assert difference < 1e-4, name
    assert (video - unpatchify(noise.video[0], PATCH, channels=24, frames=37, height=2, width=4)).norm() > 1.0


def same_inputs(
    task: Task, presenter: Presenter, model: Model, pictures: list[Path], checkpoint: Path
) -> tuple[Example, Noise]:
    """The product's draws from one generator (conditions, video, sound), as rows of a batch of one."""
    generator = torch.Generator().manual_seed(5)
    conditions = []
    with DiffusersVaes(weights=MmapWeights).open(checkpoint, device=CPU, dtype=torch.float32) as codec:
        for path in pictures:
            clean = codec.encode_pixels(torch.from_numpy(np.asarray(Image.open(path)).copy())[None])
            noisy = noise_condition(clean, torch.randn(clean.shape, generator=generator))
            conditions.append(patchify(noisy, PATCH))
    video = patchify(torch.randn(1, 24, LATENT_FRAMES, HEIGHT // 16, WIDTH // 16, generator=generator), PATCH)
    audio = torch.randn(2 * AUDIO_LATENTS, 32, generator=generator)
    laying = Laying(presenter, model.facts, CPU, torch.float32)
    ids = presenter.pictures(len(pictures))[0] + presenter.prompts([PROMPTS[task]])[0]
    example = Example(
        ids=torch.tensor([ids]),
        condition=torch.cat(conditions)[None] if conditions else None,
        audio=audio[None],
        video=video[None],
        layout=laying.layout(task, (HEIGHT, WIDTH), len(presenter.prompts([PROMPTS[task]])[0])),
    )
    return example, Noise(audio=audio[None], video=video[None])


def test_the_text_encoder_is_qwen3_vl(run_folder: Path, checkpoint: Path) -> None:
    """The public class, all 51 layers, gives hidden state 50 equal to the three layers that were trained."""
    from transformers import Qwen3VLForConditionalGeneration

    model, presenter = opened(run_folder, Task.T2VA)
    public = Qwen3VLForConditionalGeneration.from_pretrained(checkpoint / "text_encoder", dtype=torch.float32)
    ids = torch.tensor(presenter.prompts(["a large white star moves in a circle on grey"]))
    with torch.no_grad():
        states = public.model(
            input_ids=ids, mm_token_type_ids=torch.zeros_like(ids), output_hidden_states=True
        ).hidden_states
        wanted = model.encoder(ids)
    assert len(states) == 52
    assert torch.allclose(states[50], wanted, atol=1e-4)


def test_a_state_that_does_not_fit_is_refused(run_folder: Path, tmp_path: Path) -> None:
    """Exporting with other dimensions names the component instead of writing a broken checkpoint."""
    import attrs

    other = attrs.evolve(TOY, vae={**TOY.vae, "block_out_channels": [8, 4, 8, 8, 8, 8]})
    with pytest.raises(ValueError, match="vae: the state does not fit"):
        export_checkpoint(run_folder, tmp_path / "wrong", other)


def test_sizes_are_reported(checkpoint: Path) -> None:
    """Every weight folder is counted."""
    assert {"vae", "audio_vae", "transformer", "transformer_ref", "text_encoder"} <= set(size_of(checkpoint))
