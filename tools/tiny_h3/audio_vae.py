"""Train the audio VAE: mono stretches of the world's sound, on the latent grid, its latents being `audio_code`.

The decoder learns code to waveform, the encoder waveform to code: two regressions in one step. The waveform itself is
compared, since a tone's phase is fixed by the grid; log spectra of three window lengths keep quiet channels and silence
right.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from tiny_h3.alias_free import fuse_activations
from tiny_h3.audio_code import audio_code, code_statistics
from tiny_h3.graphed import GraphedStep
from tiny_h3.scenes import Scenes, SceneStream
from tiny_h3.stage import Budget, Log, Progress, SaveClock, learning_rate, load_state, pick_device, save_state
from tiny_h3.world import AUDIO_LATENTS, HOP, render_audio
from vflash_adapters.tiny_checkpoint import Dimensions

LATENTS = 104
"""Length of a training stretch: half a clip."""
WINDOWS = (128, 512, 2048)
PEAK_RATE = 3e-3
CODE_NOISE = 0.15
"""At most this much noise on a code that the decoder sees, in standard deviations of each channel."""
LOG_DEVIATION = -4.0
"""What the encoder says of its own spread."""
SPREAD_WEIGHT = 0.01
FIRST_LOGGED = (1, 10, 40)


@frozen(kw_only=True)
class AudioVaeJob:
    sizes: Dimensions
    folder: Path
    budget: Budget
    batch: int = 16
    seed: int = 2
    latents: int = LATENTS

    @property
    def state(self) -> Path:
        return self.folder / "audio_vae.safetensors"


def train_audio_vae(job: AudioVaeJob) -> None:
    """Goes on from the state file if there is one. The codes' statistics are saved with the weights."""
    device = pick_device()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(job.seed)
    vae, facts = open_audio_vae(job.sizes, job.state if job.state.exists() else None, device)
    log = Log(path=job.folder / "log.jsonl", stage="audio-vae")
    statistics = code_statistics()
    rate = torch.tensor(0.0, device=device)
    on_gpu = device.type == "cuda"
    optimiser = torch.optim.AdamW(
        vae.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=1e-4, fused=on_gpu, capturable=on_gpu
    )
    spread = torch.tensor(statistics["latents_std"], device=device)[:, None]
    step = _step(vae, optimiser, spread, job, log)
    progress, done, clock = Progress(budget=job.budget), int(facts.get("steps", 0)), SaveClock()
    stream = SceneStream(job.batch, job.seed * 1_000_003 + done, device)
    while not progress.done:
        rate.fill_(learning_rate(PEAK_RATE, progress.share, progress.step))
        wave, code = stretches(next(stream), job.latents)
        level = CODE_NOISE * torch.rand(job.batch, 1, 1, device=device)
        parts = step(wave, code, code + level * spread * torch.randn_like(code))
        progress.step += 1
        if progress.step % 200 == 0 or progress.step in FIRST_LOGGED:
            graphed = step.failure or step.graphed
            log.write(step=done + progress.step, share=progress.share, graph=graphed, **_named(parts))
        if clock.due():
            save_state(job.state, vae.state_dict(), {"steps": done + progress.step, **statistics}, torch.float16)
    save_state(job.state, vae.state_dict(), {"steps": done + progress.step, **statistics}, torch.float16)
    log.write(step=done + progress.step, share=1.0, **_named(parts))


def open_audio_vae(sizes: Dimensions, state: Path | None, device: torch.device) -> tuple[Any, dict[str, Any]]:
    """The public class with our config, and the facts of the state it was filled from."""
    from diffusers import AutoencoderKLMiniMaxH3Audio

    facts: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*weight_norm", category=FutureWarning)
        vae: Any = AutoencoderKLMiniMaxH3Audio(**sizes.audio_vae)
    if state is not None:
        tensors, facts = load_state(state)
        vae.load_state_dict(tensors)
    return vae.to(device), facts


def stretches(scenes: Scenes, latents: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One channel of a part of each clip, starting where a latent frame starts: samples [n, latents * HOP] and their
    code [n, 32, latents]."""
    device, count = scenes.shape.device, scenes.count
    channel = torch.randint(2, (count,), device=device)
    start = torch.randint(AUDIO_LATENTS - latents + 1, (count, 1), device=device)
    each = torch.arange(count, device=device)
    frames = start + torch.arange(latents, device=device)
    wave = render_audio(scenes)[each, channel].unflatten(1, (AUDIO_LATENTS, HOP))
    code = audio_code(scenes)[each, channel]
    return wave[each[:, None], frames].flatten(1), code.gather(2, frames[:, None].expand(-1, code.shape[1], -1))


def audio_loss(
    vae: Any, spread: torch.Tensor, wave: torch.Tensor, code: torch.Tensor, noisy_code: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """`spread` [32, 1] of the codes, wave [n, samples], codes [n, 32, latents] -> loss; waveform L1, log-spectral L1,
    the encoder's mean squared error in standard deviations."""
    decoded = vae.decode(noisy_code).sample[:, 0]
    posterior = vae.encode(wave[:, None]).latent_dist
    absolute = (decoded - wave).abs().mean()
    spectral = torch.stack([_log_spectral(decoded, wave, size) for size in WINDOWS]).mean()
    missed = ((posterior.mean - code) / spread).square().mean()
    stated = (posterior.logs - LOG_DEVIATION).square().mean()
    loss = 20.0 * absolute + spectral + missed + SPREAD_WEIGHT * stated
    return loss, absolute.detach(), spectral.detach(), missed.detach()


def _step(vae: Any, optimiser: torch.optim.Optimizer, spread: torch.Tensor, job: AudioVaeJob, log: Log) -> GraphedStep:
    """Compiled activations on a GPU, if its compiler works; a run must not be lost to it."""
    wave = torch.zeros(job.batch, job.latents * HOP, device=spread.device)
    code = torch.zeros(job.batch, len(spread), job.latents, device=spread.device)

    def update(*batch: torch.Tensor) -> torch.Tensor:
        optimiser.zero_grad()
        loss, *parts = audio_loss(vae, spread, *batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        return torch.stack([loss.detach(), *parts])

    fuse_activations(vae, compiled=spread.is_cuda)
    step = GraphedStep(update, wave, code, code)
    if spread.is_cuda:
        begin = time.perf_counter()
        try:
            step(wave, code, code)  # at a rate of zero
        except Exception as error:
            log.write(compiled=False, error=str(error)[:300])
            fuse_activations(vae, compiled=False)
        log.write(first_step_seconds=time.perf_counter() - begin)
    return step


def _log_spectral(decoded: torch.Tensor, wave: torch.Tensor, size: int) -> torch.Tensor:
    window = torch.hann_window(size, device=wave.device)
    sides = [
        torch.stft(x, size, size // 4, window=window, return_complex=True).abs() / size**0.5 for x in (decoded, wave)
    ]
    logs = [torch.log(side + 1e-3) for side in sides]
    return (logs[0] - logs[1]).abs().mean() + (sides[0] - sides[1]).abs().mean()


def _named(parts: torch.Tensor) -> dict[str, float]:
    return dict(zip(("loss", "absolute", "spectral", "missed"), parts.tolist(), strict=True))
