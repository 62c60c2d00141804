"""Train the video VAE: windows of 22 frames, as the released decoder sees them.

Seven latent frames in a row are one decoder window: the five of a 17-frame clip and the first two of the next, which
depend on that clip's first five frames alone. So 17 + 5 frames go in, and the same 22 must come out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch.func import functional_call

from tiny_h3.muon import Optimiser
from tiny_h3.scenes import BACKGROUNDS, Scenes, SceneStream, draw_scenes
from tiny_h3.stage import (
    Budget,
    Log,
    Progress,
    SaveClock,
    compute_dtype,
    learning_rate,
    load_state,
    pick_device,
    save_state,
)
from tiny_h3.world import render_video
from vflash_adapters.judge.palette import BACKGROUND_RGB
from vflash_adapters.tiny_checkpoint import Dimensions

CLIP, LEAD = 17, 5
WINDOW = CLIP + LEAD
STARTS = tuple(range(0, 103, CLIP))
CANVASES = ((64, 64), (96, 128), (64, 64), (128, 96))
"""(height, width), in turn: small ones are cheap and teach the same."""
PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)
KL_WEIGHT = 2e-3
OBJECT_WEIGHT = 6.0
PEAK_RATE, MATRIX_RATE = 1.5e-3, 0.02
FIRST_LOGGED = (1, 10, 40)


@frozen(kw_only=True)
class VideoVaeJob:
    sizes: Dimensions
    folder: Path
    budget: Budget
    batch: int = 24
    seed: int = 1
    canvases: tuple[tuple[int, int], ...] = CANVASES
    statistics_clips: int = 128

    @property
    def state(self) -> Path:
        return self.folder / "vae.safetensors"


def train_video_vae(job: VideoVaeJob) -> None:
    """Goes on from the state file if there is one. Ends with the latent statistics measured and saved."""
    device = pick_device()
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 4
    torch.manual_seed(job.seed)
    vae, facts = open_video_vae(job.sizes, job.state if job.state.exists() else None, device)
    log = Log(path=job.folder / "log.jsonl", stage="video-vae")
    named = dict(vae.named_parameters())
    hidden = [name for name, value in named.items() if "decoder.transformer_blocks" in name and value.ndim == 2]
    optimiser = Optimiser(named, hidden, matrix_rate=MATRIX_RATE, other_rate=PEAK_RATE)
    progress, done, clock = Progress(budget=job.budget), int(facts.get("steps", 0)), SaveClock()
    stream = SceneStream(job.batch, job.seed * 1_000_003 + done, device)
    while not progress.done:
        height, width = job.canvases[progress.step % len(job.canvases)]
        loss, parts = window_loss(vae, next(stream), height, width, compute_dtype(device))
        loss.backward()
        optimiser.schedule(learning_rate(1.0, progress.share, progress.step))
        optimiser.step()
        progress.step += 1
        if progress.step % 100 == 0 or progress.step in FIRST_LOGGED:
            log.write(step=done + progress.step, share=progress.share, **{k: float(v) for k, v in parts.items()})
        if clock.due():
            save_state(job.state, vae.state_dict(), {"steps": done + progress.step}, torch.float16)
    statistics = latent_statistics(vae, job, device)
    save_state(job.state, vae.state_dict(), {"steps": done + progress.step, **statistics}, torch.float16)
    log.write(step=done + progress.step, share=1.0, **{k: float(v) for k, v in parts.items()})


def open_video_vae(sizes: Dimensions, state: Path | None, device: torch.device) -> tuple[Any, dict[str, Any]]:
    """The public class with our config, and the facts of the state it was filled from."""
    from diffusers import AutoencoderKLMiniMaxH3

    facts: dict[str, Any] = {}
    vae: Any = AutoencoderKLMiniMaxH3(**sizes.vae)
    with torch.no_grad():
        for block in vae.decoder.transformer_blocks:  # zero in the class: every block would start as the identity
            block.scale1.fill_(0.2)
            block.scale2.fill_(0.2)
        vae.decoder.register_tokens.normal_(std=0.5)
    if state is not None:
        tensors, facts = load_state(state)
        vae.load_state_dict(tensors)
    vae.use_tiling = False  # no canvas here is larger than a tile
    return vae.to(device), facts


def window_loss(
    vae: Any, scenes: Scenes, height: int, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """One window of every scene; parameters are float32, arithmetic is `dtype`."""
    device = scenes.shape.device
    starts = torch.tensor(STARTS, device=device)[torch.randint(len(STARTS), (scenes.count,), device=device)]
    pixels = render_video(scenes, height, width, first_frame=starts, frames=WINDOW)
    target = normalise_pixels(pixels)
    cast = {name: tensor.to(dtype) for name, tensor in vae.named_parameters()}
    mean, logvar = window_latents(vae, cast, target.to(dtype))
    latents = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
    decoded = window_pixels(vae, cast, latents.to(dtype))
    weight = 1.0 + OBJECT_WEIGHT * _around_objects(pixels, scenes)
    difference = (decoded.float() - target) * weight.sqrt()
    absolute = ((decoded.float() - target).abs() * weight).mean()
    kl = 0.5 * (mean.square() + logvar.exp() - 1.0 - logvar).mean()
    loss = absolute + difference.square().mean() + KL_WEIGHT * kl
    parts = {"loss": loss, "absolute": (decoded.float() - target).abs().mean(), "kl": kl, "on_object": absolute}
    return loss, {name: value.detach() for name, value in parts.items()}


def normalise_pixels(pixels: torch.Tensor) -> torch.Tensor:
    """[n, 3, F, H, W] in [0, 1] to the VAE's own range."""
    mean, std = (torch.tensor(v, device=pixels.device).view(1, 3, 1, 1, 1) for v in (PIXEL_MEAN, PIXEL_STD))
    return (pixels - mean) / std


def restore_pixels(decoded: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(v, device=decoded.device).view(1, 3, 1, 1, 1) for v in (PIXEL_MEAN, PIXEL_STD))
    return (decoded.float() * std + mean).clamp(0, 1)


@torch.no_grad()
def latent_statistics(vae: Any, job: VideoVaeJob, device: torch.device) -> dict[str, list[float]]:
    """Per-channel mean and standard deviation of posterior means over whole clips; what the config stores."""
    total, square, count = torch.zeros(24, device=device), torch.zeros(24, device=device), 0
    for start in range(0, job.statistics_clips, 16):
        height, width = job.canvases[(start // 16) % len(job.canvases)]
        scenes = draw_scenes(min(16, job.statistics_clips), 999_000 + start).to(device)
        mean = vae.encode(normalise_pixels(render_video(scenes, height, width))).latent_dist.mode().float()
        flat = mean.transpose(0, 1).flatten(1)
        total, square, count = total + flat.sum(1), square + flat.square().sum(1), count + flat.shape[1]
    centre = total / count
    spread = (square / count - centre.square()).clamp(min=1e-8).sqrt()
    return {"latents_mean": centre.tolist(), "latents_std": spread.tolist()}


def window_latents(vae: Any, cast: dict[str, torch.Tensor], pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and log variance, float32 [n, 24, 7, h, w]."""
    parts = [pixels[:, :, :CLIP], pixels[:, :, CLIP:]]
    encoder, quant = _own(cast, "encoder."), _own(cast, "quant_conv.")
    moments = [functional_call(vae.quant_conv, quant, (functional_call(vae.encoder, encoder, (p,)),)) for p in parts]
    mean, logvar = torch.cat(moments, dim=2).float().chunk(2, dim=1)
    return mean, logvar.clamp(-20.0, 10.0)


def window_pixels(vae: Any, cast: dict[str, torch.Tensor], latents: torch.Tensor) -> torch.Tensor:
    """[n, 24, 7, h, w] -> [n, 3, 22, H, W]: 28 frames less the three before each clip's first."""
    before = functional_call(vae.post_quant_conv, _own(cast, "post_quant_conv."), (latents,))
    frames = functional_call(vae.decoder, _own(cast, "decoder."), (before,))
    return torch.cat([frames[:, :, 3:20], frames[:, :, 23:28]], dim=2)


def _own(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _around_objects(pixels: torch.Tensor, scenes: Scenes) -> torch.Tensor:
    """1 on objects and two pixels around them, else 0: [n, 1, F, H, W]. Most of a picture is background."""
    ground = torch.tensor([BACKGROUND_RGB[b] for b in BACKGROUNDS], device=pixels.device)[scenes.background] / 255.0
    object_ = ((pixels - ground[:, :, None, None, None]).abs().amax(1, keepdim=True) > 0.05).float()
    return F.max_pool3d(object_, (1, 5, 5), stride=1, padding=(0, 2, 2))
