"""Train the audio VAE: mono stretches of the world's sound, on the latent grid.

The waveform itself is compared first: a tone's phase is fixed by the grid, so it can be learnt; log spectra of three
window lengths keep quiet channels and silence right.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from tiny_h3.alias_free import fuse_activations
from tiny_h3.scenes import Scenes, SceneStream, draw_scenes
from tiny_h3.stage import Budget, Log, Progress, learning_rate, load_state, pick_device, save_state
from tiny_h3.world import AUDIO_LATENTS, HOP, render_audio
from vflash_adapters.tiny_checkpoint import Dimensions

LATENTS = 104
"""Length of a training stretch: half a clip."""
WINDOWS = (128, 512, 2048)
KL_WEIGHT = 1e-3
PEAK_RATE = 2e-3
SAVE_EVERY_S = 30.0
FIRST_LOGGED = (1, 10, 40)


@frozen(kw_only=True)
class AudioVaeJob:
    sizes: Dimensions
    folder: Path
    budget: Budget
    batch: int = 16
    seed: int = 2
    latents: int = LATENTS
    statistics_clips: int = 128

    @property
    def state(self) -> Path:
        return self.folder / "audio_vae.safetensors"


def train_audio_vae(job: AudioVaeJob) -> None:
    """Goes on from the state file if there is one. Ends with the latent statistics measured and saved."""
    device = pick_device()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(job.seed)
    vae, facts = open_audio_vae(job.sizes, job.state if job.state.exists() else None, device)
    log = Log(path=job.folder / "log.jsonl", stage="audio-vae")
    _fuse(vae, device, log)
    optimiser = torch.optim.AdamW(
        vae.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=1e-4, fused=device.type == "cuda"
    )
    progress, done, saved = Progress(budget=job.budget), int(facts.get("steps", 0)), 0.0
    stream = SceneStream(job.batch, job.seed * 1_000_003 + done, device)
    while not progress.done:
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(PEAK_RATE, progress.share, progress.step)
        parts = _update(vae, optimiser, stretches(next(stream), job.latents))
        progress.step += 1
        if progress.step % 200 == 0 or progress.step in FIRST_LOGGED:
            log.write(step=done + progress.step, share=progress.share, **_named(parts))
        if progress.share - saved > SAVE_EVERY_S / (job.budget.seconds or 1e9):
            saved = progress.share
            save_state(job.state, vae.state_dict(), {"steps": done + progress.step}, torch.float16)
    statistics = latent_statistics(vae, job.statistics_clips, device)
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


def stretches(scenes: Scenes, latents: int) -> torch.Tensor:
    """One channel of a part of each clip, [n, latents * HOP], starting where a latent frame starts."""
    device, count = scenes.shape.device, scenes.count
    channel = torch.randint(2, (count, 1, 1), device=device)
    start = torch.randint(AUDIO_LATENTS - latents + 1, (count, 1), device=device) * HOP
    wave = render_audio(scenes)
    mono = wave.gather(1, channel.expand(-1, 1, wave.shape[2]))[:, 0]
    return mono.gather(1, start + torch.arange(latents * HOP, device=device))


def audio_loss(vae: Any, wave: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """wave [n, samples] -> loss, waveform L1, log-spectral L1, KL."""
    posterior = vae.encode(wave[:, None]).latent_dist
    mean, logs = posterior.mean, posterior.logs.clamp(-10.0, 4.0)
    decoded = vae.decode(mean + torch.exp(logs) * torch.randn_like(mean)).sample[:, 0]
    absolute = (decoded - wave).abs().mean()
    spectral = torch.stack([_log_spectral(decoded, wave, size) for size in WINDOWS]).mean()
    kl = (0.5 * (mean.square() + torch.exp(2.0 * logs) - 1.0) - logs).mean()
    return 20.0 * absolute + spectral + KL_WEIGHT * kl, absolute.detach(), spectral.detach(), kl.detach()


@torch.no_grad()
def latent_statistics(vae: Any, clips: int, device: torch.device) -> dict[str, list[float]]:
    """Per-channel mean and standard deviation of posterior means over whole clips; what the config stores."""
    means = []
    for start in range(0, clips, 32):
        wave = render_audio(draw_scenes(min(32, clips), 999_000 + start).to(device))
        means.append(vae.encode(wave.flatten(0, 1)[:, None]).latent_dist.mode().transpose(0, 1).flatten(1))
    flat = torch.cat(means, dim=1)
    return {"latents_mean": flat.mean(1).tolist(), "latents_std": flat.std(1).clamp(min=1e-4).tolist()}


def _fuse(vae: Any, device: torch.device, log: Log) -> None:
    """Compiled activations on a GPU, if its compiler works; a run must not be lost to it."""
    fuse_activations(vae, compiled=device.type == "cuda")
    if device.type != "cuda":
        return
    begin = time.perf_counter()
    try:
        audio_loss(vae, torch.zeros(2, 10 * HOP, device=device))[0].backward()  # no two sizes equal: they would be tied
    except Exception as error:
        log.write(compiled=False, error=str(error)[:300])
        fuse_activations(vae, compiled=False)
    log.write(fused_in_seconds=time.perf_counter() - begin)
    vae.zero_grad(set_to_none=True)


def _update(vae: Any, optimiser: torch.optim.Optimizer, wave: torch.Tensor) -> torch.Tensor:
    loss, *parts = audio_loss(vae, wave)
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
    optimiser.step()
    return torch.stack([loss.detach(), *parts])


def _log_spectral(decoded: torch.Tensor, wave: torch.Tensor, size: int) -> torch.Tensor:
    window = torch.hann_window(size, device=wave.device)
    sides = [
        torch.stft(x, size, size // 4, window=window, return_complex=True).abs() / size**0.5 for x in (decoded, wave)
    ]
    logs = [torch.log(side + 1e-3) for side in sides]
    return (logs[0] - logs[1]).abs().mean() + (sides[0] - sides[1]).abs().mean()


def _named(parts: torch.Tensor) -> dict[str, float]:
    return dict(zip(("loss", "absolute", "spectral", "kl"), parts.tolist(), strict=True))
