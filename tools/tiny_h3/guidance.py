"""Classifier-free guidance, taken into the weights: text alone learns the velocity that guidance would have given.

J. Ho and T. Salimans, "Classifier-free diffusion guidance" (2022); C. Meng et al., "On distillation of guided diffusion
models" (2023). The released pipeline evaluates once a step, so what guidance brings must be in the model.
"""

from __future__ import annotations

import attrs
import torch
from attrs import frozen

from tiny_h3.denoiser import Noised
from tiny_h3.model import Model
from tiny_h3.tasks import Example


@frozen(kw_only=True, eq=False)
class Guidance:
    """A frozen teacher that also knows what comes of a caption of `silent` tokens. Sound is not guided."""

    teacher: Model
    silent: int
    scale: float

    @torch.no_grad()
    def push(self, example: Example, noised: Noised, said: torch.Tensor | None = None) -> torch.Tensor:
        """What guidance adds to the video velocity, [B, Lv, 96]: (scale - 1) * (said - unsaid). `said` is the
        teacher's own velocity, where it is known."""
        if said is None:
            said = self._velocity(example, noised, example.ids)
        unsaid = self._velocity(example, noised, torch.full_like(example.ids, self.silent))
        return (self.scale - 1.0) * (said - unsaid)

    def _velocity(self, example: Example, noised: Noised, ids: torch.Tensor) -> torch.Tensor:
        heard = attrs.evolve(noised, text=self.teacher.encoder(ids))
        return self.teacher.denoiser.velocities(self.teacher.parameters, heard, example.layout)[0]
