"""The float32 sigma grids, and the Euler step in the released model's rounding order."""

from __future__ import annotations

import torch
from attrs import frozen

from vflash.domain.schedule import CLEAN_TIMESTEP, CONDITION_TIMESTEP, Schedule
from vflash.model.positions import Role
from vflash_ports.errors import ContractError


@frozen(kw_only=True, eq=False)
class SigmaGrid:
    """`sigmas` [evaluations + 1] float32, strictly falling to 0; `timesteps` = 1 - sigma, [evaluations]."""

    sigmas: torch.Tensor
    timesteps: torch.Tensor


def sigma_grid(evaluations: int, shift: float) -> SigmaGrid:
    """linspace(1, 0) through the shift, all in float32 on the CPU so that no device changes a schedule."""
    base = torch.linspace(1.0, 0.0, evaluations + 1, dtype=torch.float32)
    sigmas = shift * base / (1 + (shift - 1) * base)
    if not bool((sigmas[1:] < sigmas[:-1]).all()):
        raise ContractError(f"steps {evaluations} with flow shift {shift:g} repeats a noise level; use fewer steps")
    return SigmaGrid(sigmas=sigmas, timesteps=1.0 - sigmas[:-1])


@frozen(kw_only=True, eq=False)
class Grids:
    """Both grids of a request."""

    video: SigmaGrid
    audio: SigmaGrid

    @property
    def evaluations(self) -> int:
        return len(self.video.timesteps)

    def role_timesteps(self, evaluation: int) -> tuple[float, ...]:
        """The timestep of each `Role`, in role order."""
        video, audio = float(self.video.timesteps[evaluation]), float(self.audio.timesteps[evaluation])
        condition = max(video, CONDITION_TIMESTEP)
        return (video, video, audio, condition, CLEAN_TIMESTEP)[: len(Role)]


def grids(schedule: Schedule) -> Grids:
    return Grids(
        video=sigma_grid(schedule.evaluations, schedule.video_shift),
        audio=sigma_grid(schedule.evaluations, schedule.audio_shift),
    )


def euler_step(sample: torch.Tensor, velocity: torch.Tensor, grid: SigmaGrid, evaluation: int) -> torch.Tensor:
    """x0 = x + (1 - t) * v, then r * x + (1 - r) * x0 with r = sigma_next / sigma, in float32.

    1 - t and sigma are not the same float for sigma < 0.5; keeping both sources keeps the reference's rounding.
    """
    sigma_from_t = float(1 - grid.timesteps[evaluation])
    ratio = grid.sigmas[evaluation + 1] / grid.sigmas[evaluation]
    denoised = sample + sigma_from_t * velocity
    return float(ratio) * sample + float(1.0 - ratio) * denoised


def noise_condition(clean: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """0.999 * z + (1 - 0.999) * noise, float32."""
    t = torch.tensor(CONDITION_TIMESTEP, dtype=torch.float32)
    return t * clean + (1.0 - t) * noise
