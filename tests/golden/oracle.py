"""The public pipeline (diffusers 0.42.1) as an oracle: every intermediate of a request, on the CPU.

Use it through the session fixture of `tests/conftest.py`:

    def test_something(oracle, tiny_checkpoints):
        result = oracle.mode(tiny_checkpoints["small"], "i2va")  # one of MODES; a checkpoint's modes run together, once
        result.prompt_embeds, result.initial_video_rows, result.frames, ...
        oracle.request("i2va")  # what was asked: prompt, seed, pictures, ...

    def test_another(oracle, tiny_checkpoints):
        request = OracleRequest(prompt="rain", seed=3, evaluations=4, height=64, width=96)
        result = oracle.run(tiny_checkpoints["other"], request)  # any request; kept on disk for the whole session
        rounded = oracle.run(tiny_checkpoints["other"], request, dtype="bfloat16")

(`from oracle import OracleRequest` works once the conftest is loaded.) N evaluations here are N + 1
`num_inference_steps` there. Pictures and frames are uint8 RGB [..., H, W, 3]; sounds are float32 [channels, n] at the
audio VAE's own rate unless a rate is given (the reference would need torchaudio to resample).

The reference runs in a process of its own: it cannot live without torchvision, the engine must, and torchvision from
PyPI does not import beside a CPU build of torch without help (see `reference_process.py`). `make setup` puts
torchvision in `<venv>/reference`, out of the engine's sight.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, field, fields, frozen
from filelock import FileLock
from safetensors.torch import load_file, save_file

Tensor = torch.Tensor

MODES = (
    "t2va",
    "i2va",
    "l2va",
    "fl2va",
    "ref2va-image",
    "ref2va-images",
    "ref2va-video",
    "ref2va-image-audio",
    "ref2va-mix",
)


@frozen(kw_only=True, eq=False)
class Picture:
    pixels: Tensor  # uint8 [H, W, 3]


@frozen(kw_only=True, eq=False)
class Video:
    frames: Tensor  # uint8 [F, H, W, 3]
    fps: float = 24.0
    waveform: Tensor | None = None
    sample_rate_hz: int | None = None


@frozen(kw_only=True, eq=False)
class Sound:
    waveform: Tensor  # float32 [1 or 2, n]
    sample_rate_hz: int | None = None


@frozen(kw_only=True, eq=False)
class OracleRequest:
    """`first` and `last` are uint8 [H, W, 3]; height and width None lets the reference choose the canvas."""

    prompt: str = "A red fox runs through the snow; <d>Hello.</d> 雪，轻柔的音乐。"
    seed: int = 7
    evaluations: int = 3
    num_frames: int = 124
    height: int | None = 64
    width: int | None = 96
    first: Tensor | None = None
    last: Tensor | None = None
    references: tuple[Picture | Video | Sound, ...] = ()


@frozen(kw_only=True, eq=False)
class OracleResult:
    """Names are the reference's. L packed rows, Lt text rows; conditioning rows come first in both row tensors."""

    height: int
    width: int
    num_frames: int
    sample_rate_hz: int
    num_condition_video_rows: int
    num_condition_audio_rows: int
    # text: ids and token types [Lt]; embeds [Lt, D]; tags [Lt] 1 text, 0 video; vision inputs as the encoder got them
    token_ids: Tensor
    mm_token_type_ids: Tensor
    prompt_embeds: Tensor
    text_token_tags: Tensor
    pixel_values: Tensor | None = None
    image_grid_thw: Tensor | None = None
    pixel_values_videos: Tensor | None = None
    video_grid_thw: Tensor | None = None
    # conditioning: pictures as put on their canvas (uint8 [H, W, 3] or [F, H, W, 3]), waveforms [2, n], latents
    keyframes: tuple[Tensor, ...] = ()
    reference_pixels: tuple[Tensor, ...] = ()
    reference_waveforms: tuple[Tensor, ...] = ()
    condition_latents: tuple[Tensor, ...] = ()
    audio_condition_latents: tuple[Tensor, ...] = ()
    # layout
    position_ids: Tensor
    token_tags: Tensor
    video_indices: Tensor
    audio_indices: Tensor
    text_indices: Tensor
    # denoising: rows before the first evaluation; per evaluation the distinct timesteps, row -> timestep, velocities
    initial_video_rows: Tensor
    initial_audio_rows: Tensor
    timesteps: Tensor
    audio_timesteps: Tensor
    unique_timesteps: tuple[Tensor, ...]
    timestep_indices: tuple[Tensor, ...]
    video_velocities: tuple[Tensor, ...]
    audio_velocities: tuple[Tensor, ...]
    # the end: [1, 24, T, h, w], [2, 32, A], frames [F, 3, H, W] in [0, 1], waveform [2, n] in [-1, 1]
    latents: Tensor
    audio_latents: Tensor
    frames: Tensor
    waveform: Tensor


def torchvision_folder() -> Path:
    """Where `make setup` puts the torchvision that only the reference needs."""
    folder = Path(sys.prefix) / "reference"
    if not (folder / "torchvision").is_dir():
        raise RuntimeError(
            f"the reference pipeline needs torchvision in {folder}: run `make setup`, or "
            f"`pip install --no-deps --target {folder} torchvision==0.28.0`"
        )
    return folder


def _run_reference(folders: list[Path]) -> None:
    script = Path(__file__).with_name("reference_process.py")
    environment = {**os.environ, "PYTHONPATH": str(torchvision_folder()), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, *folders], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"the reference pipeline failed:\n{done.stdout}\n{done.stderr}")


def _job(checkpoint: Path, request: OracleRequest, dtype: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """JSON for the plain values, tensors apart; a tensor's place in the JSON holds its name."""
    tensors: dict[str, Tensor] = {}

    def take(value: Any) -> Any:
        if isinstance(value, Tensor):
            name = f"media.{len(tensors)}"
            tensors[name] = value.contiguous().clone()
            return {"tensor": name}
        if isinstance(value, Picture | Video | Sound):
            plain = {key: take(item) for key, item in asdict(value, recurse=False).items()}
            return {"kind": type(value).__name__, **plain}
        if isinstance(value, tuple):
            return [take(item) for item in value]
        return value

    values = {key: take(value) for key, value in asdict(request, recurse=False).items()}
    return {"checkpoint": str(checkpoint), "dtype": dtype, **values}, tensors


def _key(job: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode())
    for name, tensor in tensors.items():
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:20]


def _read_result(folder: Path) -> OracleResult:
    values: dict[str, Any] = json.loads((folder / "result.json").read_text())
    tensors = load_file(folder / "result.safetensors")
    for item in fields(OracleResult):
        if item.name in tensors:
            values[item.name] = tensors[item.name]
        elif "tuple" in str(item.type):
            several = (f"{item.name}.{i}" for i in range(len(tensors)))
            values[item.name] = tuple(tensors[name] for name in several if name in tensors)
    return OracleResult(**values)


def standard_requests() -> dict[str, OracleRequest]:
    """One request a mode, on a non-square canvas, with media of odd sizes so that every resize works."""
    first, last = picture(50, 90, seed=1), picture(120, 70, seed=2)
    moving = Video(frames=clip(30, 48, 80, seed=3), waveform=tone(50_000, seed=4))
    silent = Video(frames=clip(23, 70, 50, seed=5), fps=15.0)
    references = {
        "ref2va-image": (Picture(pixels=first),),
        "ref2va-images": (Picture(pixels=first), Picture(pixels=last), Picture(pixels=picture(64, 64, seed=6))),
        "ref2va-video": (moving,),
        "ref2va-image-audio": (Picture(pixels=last), Sound(waveform=tone(33_333, seed=7))),
        "ref2va-mix": (Sound(waveform=tone(20_000, seed=8)[:1]), silent, Picture(pixels=first), moving),
    }
    keyframes = {
        "t2va": OracleRequest(),
        "i2va": OracleRequest(first=first),
        "l2va": OracleRequest(last=last),
        "fl2va": OracleRequest(first=first, last=last, height=None, width=None, evaluations=4),
    }
    prompt = "The fox of the first reference walks along the shore; waves break."
    return keyframes | {
        name: OracleRequest(prompt=prompt, references=given, seed=11) for name, given in references.items()
    }


def picture(height: int, width: int, *, seed: int) -> Tensor:
    """Smooth colours with noise on top, uint8 [height, width, 3]."""
    return clip(1, height, width, seed=seed)[0]


def clip(frames: int, height: int, width: int, *, seed: int) -> Tensor:
    """Drifting colour waves with noise, uint8 [frames, height, width, 3]."""
    generator = torch.Generator().manual_seed(seed)
    t, y, x = torch.meshgrid(*(torch.arange(n) / max(n, 2) for n in (frames, height, width)), indexing="ij")
    waves = [torch.sin(6.3 * (t + (2 + c) * y + (seed % 3) * x + 0.3 * c)) for c in range(3)]
    noise = torch.rand(frames, height, width, 3, generator=generator) - 0.5
    return ((torch.stack(waves, dim=-1) * 0.4 + 0.5 + 0.2 * noise).clamp(0, 1) * 255).round().to(torch.uint8)


def tone(samples: int, *, seed: int) -> Tensor:
    """A chord with noise, float32 [2, samples] in [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(samples) / 32_000
    left, right = torch.sin(time * (400 + 90 * seed)), torch.sin(time * (700 + 50 * seed))
    return 0.6 * torch.stack([left, right]) + 0.1 * (torch.rand(2, samples, generator=generator) - 0.5)


@frozen(kw_only=True)
class Oracle:
    """Runs requests and keeps the results under `cache`, which test workers may share."""

    cache: Path
    _requests: Mapping[str, OracleRequest] = field(factory=standard_requests)

    def request(self, mode: str) -> OracleRequest:
        return self._requests[mode]

    def mode(self, checkpoint: Path, mode: str, dtype: str = "float32") -> OracleResult:
        """The standard request of one of `MODES`; the first call runs all modes of this checkpoint in one go."""
        names = list(MODES)
        results = self._paths(checkpoint, [self._requests[name] for name in names], dtype)
        return _read_result(results[names.index(mode)])

    def run(self, checkpoint: Path, request: OracleRequest, dtype: str = "float32") -> OracleResult:
        return self.run_all(checkpoint, [request], dtype)[0]

    def run_all(self, checkpoint: Path, requests: list[OracleRequest], dtype: str = "float32") -> list[OracleResult]:
        """Several requests for the start-up of one process."""
        return [_read_result(path) for path in self._paths(checkpoint, requests, dtype)]

    def _paths(self, checkpoint: Path, requests: list[OracleRequest], dtype: str) -> list[Path]:
        jobs = [_job(checkpoint, request, dtype) for request in requests]
        folders = [self.cache / _key(job, tensors) for job, tensors in jobs]
        self.cache.mkdir(parents=True, exist_ok=True)
        with FileLock(self.cache / "lock"):
            missing = []
            for folder, (job, tensors) in zip(folders, jobs, strict=True):
                if not (folder / "result.json").exists():
                    folder.mkdir(exist_ok=True)
                    (folder / "job.json").write_text(json.dumps(job))
                    save_file(tensors or {"none": torch.zeros(1)}, folder / "job.safetensors")
                    missing.append(folder)
            if missing:
                _run_reference(missing)
        return folders
