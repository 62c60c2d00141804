"""Sigma grids and the Euler step, held bit for bit against the public scheduler."""

from __future__ import annotations

import pytest
import torch
from diffusers.schedulers.scheduling_minimax_h3 import MiniMaxH3Scheduler

from vflash.domain.schedule import Schedule
from vflash.model.positions import Role
from vflash.model.sigmas import euler_step, grids, noise_condition, sigma_grid
from vflash_ports.errors import ContractError

SHIFTS = [12.0, 6.0, 3.0, 1.0]
STEPS = [1, 2, 4, 8, 16, 49, 50, 199, 1000]


def reference(steps: int, shift: float) -> MiniMaxH3Scheduler:
    scheduler = MiniMaxH3Scheduler(shift=shift)
    scheduler.set_timesteps(steps + 1)
    return scheduler


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("steps", STEPS)
def test_n_steps_are_n_evaluations_on_the_reference_s_grid(steps, shift):
    """N evaluations are the reference's N + 1 grid points: sigmas and timesteps equal bit for bit."""
    grid, theirs = sigma_grid(steps, shift), reference(steps, shift)
    assert len(grid.timesteps) == steps
    assert torch.equal(grid.sigmas, theirs.sigmas)
    assert torch.equal(grid.timesteps, theirs.timesteps)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("steps", STEPS)
def test_grids_fall_from_noise_to_clean(steps, shift):
    """sigma falls strictly from 1 to 0 and the first timestep is 0, in float32."""
    grid = sigma_grid(steps, shift)
    assert grid.sigmas.dtype is grid.timesteps.dtype is torch.float32
    assert (grid.sigmas[0], grid.sigmas[-1], grid.timesteps[0]) == (1.0, 0.0, 0.0)
    assert (grid.sigmas.diff() < 0).all()
    assert (grid.timesteps.diff() > 0).all()


def test_a_repeated_noise_level_is_refused_not_collapsed():
    """At a million steps float32 runs out of levels: fewer evaluations than asked for would run."""
    assert len(reference(1_000_000, 12.0).timesteps) < 1_000_000
    with pytest.raises(ContractError, match="steps 1000000 with flow shift 12 repeats a noise level; use fewer"):
        sigma_grid(1_000_000, 12.0)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("steps", [1, 4, 50])
def test_every_euler_step_equals_the_reference_s(steps, shift):
    """Bit for bit over a whole schedule, also where 1 - (1 - sigma) is not sigma."""
    grid, theirs = sigma_grid(steps, shift), reference(steps, shift)
    generator = torch.Generator().manual_seed(steps)
    ours = sample = torch.randn(64, 96, generator=generator)
    for evaluation, timestep in enumerate(theirs.timesteps):
        velocity = torch.randn(64, 96, generator=generator)
        ours = euler_step(ours, velocity, grid, evaluation)
        sample = theirs.step(velocity, timestep, sample, return_dict=False)[0]
        assert torch.equal(ours, sample)


def test_two_sources_of_sigma_are_kept_apart():
    """Some timestep does not give its sigma back, so a step from the grid alone would round otherwise."""
    grid = sigma_grid(50, 3.0)
    assert not torch.equal(1 - grid.timesteps, grid.sigmas[:-1])


def test_the_last_step_lands_on_the_clean_estimate():
    """sigma_next is 0, so nothing of the noisy sample is left but what the velocity says."""
    grid = sigma_grid(4, 12.0)
    sample, velocity = torch.randn(8), torch.randn(8)
    assert torch.equal(euler_step(sample, velocity, grid, 3), sample + float(1 - grid.timesteps[3]) * velocity)


def test_both_modalities_have_their_own_grid():
    """Video takes the video shift, audio the audio shift, and both have the same count."""
    both = grids(Schedule(evaluations=8, video_shift=12.0, audio_shift=3.0))
    assert torch.equal(both.video.sigmas, sigma_grid(8, 12.0).sigmas)
    assert torch.equal(both.audio.sigmas, sigma_grid(8, 3.0).sigmas)
    assert both.evaluations == len(both.video.timesteps) == len(both.audio.timesteps) == 8


def test_roles_read_their_own_timestep():
    """Text goes with video; visual conditions are held at 0.999, or above when the video is; sound is clean at 1."""
    both = grids(Schedule(evaluations=1000))
    for evaluation in (0, 1, 500, 999):
        t = both.role_timesteps(evaluation)
        video, audio = float(both.video.timesteps[evaluation]), float(both.audio.timesteps[evaluation])
        assert t[Role.VIDEO] == t[Role.TEXT] == video
        assert t[Role.AUDIO] == audio
        assert t[Role.CONDITION_VIDEO] == max(video, 0.999)
        assert t[Role.CONDITION_AUDIO] == 1.0
    late = grids(Schedule(evaluations=1000, video_shift=0.5))
    assert late.role_timesteps(999)[Role.CONDITION_VIDEO] == float(late.video.timesteps[999]) > 0.999


def test_condition_noise_equals_the_reference_s():
    """0.999 clean and the float32 rest of noise, bit for bit."""
    clean, noise = torch.randn(1, 24, 1, 4, 6), torch.randn(1, 24, 1, 4, 6)
    assert torch.equal(noise_condition(clean, noise), MiniMaxH3Scheduler().scale_noise(clean, 0.999, noise))
